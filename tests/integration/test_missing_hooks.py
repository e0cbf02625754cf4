"""Each name of torch that the instrumentation touches, missing: the program runs as it would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.instrumentation import compiling, inference, trainers
from tests.nvtx_recorder import Recorder

pytestmark = pytest.mark.slow

EAGER = {
    "torch.autograd": ["_engine_run_backward", "backward"],
    "torch.autograd.graph": ["_engine_run_backward"],
    "torch.nn.utils": ["clip_grad_norm_", "clip_grad_value_"],
    "torch.nn.utils.clip_grad": ["clip_grad_norm_", "clip_grad_value_"],
    "torch": ["Tensor.to", "Tensor.cuda", "save"],
    "torch.utils.data.dataloader": ["_BaseDataLoaderIter.__next__"],
    "torch.optim.optimizer": ["Optimizer.__init__"],
    "torch.optim.lr_scheduler": ["LRScheduler.__init__"],
    "warnings": ["_showwarnmsg"],
    "torch.cuda": ["set_sync_debug_mode", "synchronize", "make_graphed_callables", "empty_cache"],
    "torch.cuda.memory": ["empty_cache"],
    "torch.cuda.profiler": ["start", "stop"],
    "torch.cuda.streams": [
        *("Stream.synchronize", "Event.synchronize"),
        *("Stream.wait_stream", "Stream.wait_event", "Event.wait"),
    ],
    "torch.cuda.graphs": [
        *("CUDAGraph.capture_begin", "CUDAGraph.capture_end", "CUDAGraph.replay"),
        "make_graphed_callables",
    ],
}
COMPILED = {
    "torch._inductor.output_code": ["CompiledFxGraph.post_compile", "CompiledFxGraph.__init__"],
    "torch._inductor.codecache": ["FxGraphHashDetails.__init__"],
    "torch._inductor.debug": ["set_kernel_post_grad_provenance_tracing"],
    "torch._dynamo.callback": ["CompilationCallbackHandler.install_callbacks"],
    "torch._logging": ["trace_structured"],
}
"""What `Hooks.replace` asks for by name, unless it is optional."""
TOUCHED = {
    False: {
        "torch._C._autograd._get_sequence_nr": "sequence numbers",
        "torch._C._dynamo.eval_frame.set_eval_frame": "switching Dynamo off",
        "torch.cuda.is_initialized": "counters of the allocator",
    },
    True: {
        "torch._C._dynamo.eval_frame.set_code_exec_strategy": "skipping frames in Dynamo",
        "torch._C._current_autograd_node": "numbers of backward nodes",
        "torch._guards.CompileContext.current_compile_id": "compile ids",
    },
}
"""What is used without being replaced (compiled or not), and the sidecar's name for it."""

PROGRAM = '''
import atexit, gc, hashlib, importlib, json, os, sys, warnings
import torch
import torch._dynamo  # an optimizer's step would: before the forks, once for all
from torch import nn

torch.set_num_threads(1)
cases = json.loads(sys.argv[1])
if any(compiled for _, compiled in cases):
    import torch._inductor.compile_fx, torch._dynamo.callback, torch._inductor.debug


def train(compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for batch in torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2):
        run(batch.to(torch.float32)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def rename(module, name):
    """nvprobe knows a name that this torch does not have."""
    from nvprobe.instrumentation import hooks
    replace = hooks.Hooks.replace
    def other(self, where, what, *args, **kwargs):
        what = f"{what}_renamed" if (where, what) == (module, name) else what
        replace(self, where, what, *args, **kwargs)
    hooks.Hooks.replace = other


def refuse(path):
    """What is called like that works for everybody but nvprobe."""
    module, _, name = path.rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ImportError:
        above, _, attribute = module.rpartition(".")
        owner = getattr(importlib.import_module(above), attribute)
    original = getattr(owner, name)
    def refusing(*args, **kwargs):
        if sys._getframe(1).f_globals["__name__"].startswith("nvprobe"):
            raise AttributeError(f"no {name}")
        return original(*args, **kwargs)
    setattr(owner, name, refusing)


def child(case, compiled):
    os.environ["NVPROBE_SIDECAR"] = os.path.join(os.environ["SIDECARS"], str(os.getpid()))
    if case is not None:
        import nvprobe
        rename(*case) if len(case) == 2 else refuse(*case)
        nvprobe.instrument(children=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        digest = train(compiled)
    said = [str(one.message) for one in caught if "nvprobe" in str(one.message)]
    print(json.dumps([case, compiled, os.getpid(), digest, said]), flush=True)


gc.freeze()
for case, compiled in cases:
    if not (pid := os.fork()):
        try:
            child(case, compiled)
            atexit._run_exitfuncs()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)  # taking torch down would take longest of all
    assert os.waitpid(pid, 0)[1] == 0, case
'''


def named(hooks: dict[str, list[str]]) -> list[list[str]]:
    return [[module, name] for module, names in hooks.items() for name in names]


def missing(folder: Path, pid: int) -> dict[str, str]:
    """Name and reason of the hooks that a process's sidecar says are off."""
    (file,) = (folder / str(pid)).iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    off = [one for one in lines if one["kind"] == "hook" and one["state"] == "off"]
    return {one["name"]: one["reason"] for one in off}


def results(recorder: Recorder, tmp_path: Path, cases: list[list]) -> dict:
    """What each case printed: pid and digest of the weights."""
    recording = recorder.run(
        PROGRAM,
        json.dumps(cases),
        timeout=800,
        SIDECARS=str(tmp_path / "side"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    recording.ranges()  # all balanced, in every process
    lines = [json.loads(line) for line in recording.stdout.splitlines()]
    assert len(lines) == len(cases)
    assert not any(said for *_, said in lines)
    return {
        (".".join(case) if case else None, compiled): (pid, digest)
        for case, compiled, pid, digest, _ in lines
    }


@pytest.mark.parametrize("compiled", [False, True])
def test_a_name_that_torch_does_not_have(recorder: Recorder, tmp_path: Path, compiled: bool):
    pytest.importorskip("torch")
    renamed = named(COMPILED if compiled else EAGER)
    touched = [[name] for name in TOUCHED[compiled]]
    found = results(recorder, tmp_path, [[case, compiled] for case in (None, *renamed, *touched)])
    _, plain = found.pop((None, compiled))
    assert {digest for _, digest in found.values()} == {plain}
    for module, name in renamed:
        off = missing(tmp_path / "side", found[f"{module}.{name}", compiled][0])
        assert "_renamed" in off[f"{module}.{name}_renamed"], off
    for name, what in TOUCHED[compiled].items():
        off = missing(tmp_path / "side", found[name, compiled][0])
        assert off[what] == f"AttributeError: no {name.rpartition('.')[2]}", off


def test_the_list_of_names_is_complete(recorder: Recorder):
    pytest.importorskip("torch")
    code = """
        import json
        import nvprobe
        from nvprobe.instrumentation import hooks
        asked = []
        def note(self, module, name, wrap, *, optional=False, inherited=False):
            if not optional:
                asked.append([module, name])
        hooks.Hooks.replace = note
        import torch
        nvprobe.instrument(children=False)
        print(json.dumps(asked))
    """
    asked = json.loads(recorder.run(code).stdout)
    # These have tests of their own.
    others = [list(one) for one in (*inference.HOOKS, *trainers.HOOKS, *compiling._TRACERS)]
    assert sorted(asked) == sorted(named(EAGER) + named(COMPILED) + others)
