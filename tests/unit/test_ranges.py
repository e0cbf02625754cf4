"""Ranges as context manager and decorator, recorded by a real NVTX tool, always balanced."""

from __future__ import annotations

import pickle

import nvprobe
from nvprobe.instrumentation.ranges import Range
from tests.nvtx_recorder import Recorder


def test_context_manager_nests_carries_payload_and_closes_on_errors(recorder: Recorder):
    code = """
        import nvprobe
        for i in range(2):
            with nvprobe.range("outer", payload=i):
                try:
                    with nvprobe.range("inner"):
                        raise ValueError
                except ValueError:
                    pass
        again = nvprobe.range("again", payload=2.0)
        with again, again:
            pass
        for _ in range(3):
            with nvprobe.range("left by break"):
                break
    """
    ranges = recorder.run(code).ranges("user")
    assert [("/".join(one.path), one.payload) for one in ranges][:4] == [
        ("outer", 0),
        ("outer/inner", None),
        ("outer", 1),
        ("outer/inner", None),
    ]
    assert ["/".join(one.path) for one in ranges][4:] == [
        "again",
        "again/again",
        "left by break",
    ]


def test_functions_methods_and_classes(recorder: Recorder):
    code = """
        import nvprobe

        @nvprobe.annotate
        def plain(x, *, y=1):
            "Documented."
            return x + y

        @nvprobe.annotate("named", payload=5)
        def other():
            raise KeyError

        @nvprobe.range("ranged")
        def third():
            return 3

        @nvprobe.annotate
        class Service:
            limit = 3
            def work(self): return self.helper()
            def helper(self): return 7
            @staticmethod
            def static(x): return x
            @classmethod
            def build(cls): return cls()
            def __len__(self): return 9
            @property
            def size(self): return 1
            def __call__(self): return "called"

        class Half:
            @nvprobe.annotate
            def method(self): return 1

        assert plain(1, y=2) == 3 and plain.__doc__ == "Documented." and plain.__name__ == "plain"
        try:
            other()
        except KeyError:
            pass
        assert third() == 3
        service = Service.build()
        assert (service.work(), Service.static(4), len(service), service.size) == (7, 4, 9, 1)
        assert service() == "called"
        assert Half().method() == 1
        class Callable:
            def __call__(self, x): return x
        assert nvprobe.annotate(Callable())(3) == 3
        import functools
        assert nvprobe.annotate(functools.partial(max, 3), name="partial")(5) == 5
        try:
            nvprobe.annotate(3)
        except TypeError as error:
            assert "cannot annotate a int" in str(error)
    """
    recording = recorder.run(code)
    assert recording.paths() == [
        "plain",
        "named",
        "ranged",
        "Service.build",
        "Service.work",
        "Service.work/Service.helper",
        "Service.static",
        "Service.__call__",
        "Half.method",
        "Callable",
        "partial",
    ]
    assert [one.payload for one in recording.ranges() if one.name == "named"] == [5]


def test_generators_hold_their_range_only_while_they_run(recorder: Recorder):
    code = """
        import nvprobe

        @nvprobe.annotate
        def numbers():
            got = yield 1
            try:
                got = yield got
            except ValueError:
                yield "caught"
            return "done"

        generator = numbers()
        assert next(generator) == 1
        with nvprobe.range("between"):
            assert generator.send("sent") == "sent"
        assert generator.throw(ValueError()) == "caught"
        try:
            next(generator)
        except StopIteration as stop:
            assert stop.value == "done"

        closed = []
        @nvprobe.annotate
        def early():
            try:
                yield 1
            finally:
                closed.append(True)
        for _ in early():
            break
        import gc; gc.collect()
        assert closed == [True]
        assert list(nvprobe.annotate(lambda: (yield from (1, 2)))()) == [1, 2]
    """
    recording = recorder.run(code)
    assert recording.paths()[:4] == ["numbers", "between", "between/numbers", "numbers"]
    assert {one.path for one in recording.ranges() if one.name == "early"} == {("early",)}


def test_interleaved_coroutines_never_hold_each_others_range(recorder: Recorder):
    code = """
        import asyncio, nvprobe

        @nvprobe.annotate
        async def worker(name, log):
            for i in range(3):
                with nvprobe.range(f"work {name}"):
                    log.append((name, i))
                await asyncio.sleep(0)
            return name

        @nvprobe.annotate
        async def stream(n):
            try:
                for i in range(n):
                    await asyncio.sleep(0)
                    got = yield i
                    assert got in (None, "sent")
            except ValueError:
                yield "caught"
            finally:
                await asyncio.sleep(0)

        @nvprobe.annotate
        async def failing():
            await asyncio.sleep(0)
            raise KeyError("x")

        async def main():
            log = []
            assert await asyncio.gather(worker("a", log), worker("b", log)) == ["a", "b"]
            assert log == [(n, i) for i in range(3) for n in "ab"]
            assert [i async for i in stream(3)] == [0, 1, 2]
            source = stream(3)
            assert await source.asend(None) == 0
            assert await source.asend("sent") == 1
            assert await source.athrow(ValueError()) == "caught"
            await source.aclose()
            try:
                await failing()
            except KeyError:
                pass
            slow = asyncio.create_task(worker("c", log))
            await asyncio.sleep(0)
            slow.cancel()
            try:
                await slow
            except asyncio.CancelledError:
                pass
            assert asyncio.iscoroutinefunction(worker)

        asyncio.run(main())
    """
    recording = recorder.run(code)
    paths = set(recording.paths())
    assert paths == {
        "worker",
        "worker/work a",
        "worker/work b",
        "worker/work c",
        "stream",
        "failing",
    }


def test_threads_have_their_own_stacks(recorder: Recorder):
    code = """
        import threading, nvprobe
        gate = threading.Barrier(4)
        @nvprobe.annotate
        def work(i):
            gate.wait()
            with nvprobe.range(f"inner {i}"):
                gate.wait()
                if i == 2:
                    raise SystemExit
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [one.start() for one in threads]; [one.join() for one in threads]
    """
    recording = recorder.run(code)
    ranges = recording.ranges()
    assert sorted("/".join(one.path) for one in ranges) == sorted(
        ["work"] * 4 + [f"work/inner {i}" for i in range(4)]
    )
    assert len({one.thread for one in ranges}) == 4


def test_works_without_torch_nvtx_and_tables(recorder: Recorder):
    code = """
        import sys
        blocked = ("torch", "nvtx", "pandas", "pyarrow", "adbc_driver_sqlite", "numpy")
        sys.modules.update(dict.fromkeys(blocked))
        import nvprobe
        @nvprobe.annotate
        def f(): return 1
        with nvprobe.range("x"):
            assert f() == 1
        assert list(nvprobe.steps([1, 2])) == [1, 2]
        with nvprobe.step():
            pass
        nvprobe.instrument()
    """
    assert recorder.run(code).events == []


def test_a_range_pickles():
    made = pickle.loads(pickle.dumps(nvprobe.range("x", payload=3)))
    assert isinstance(made, Range)
    assert (made.name, made.payload) == ("x", 3)


def test_names_and_payloads_that_a_tool_cannot_take_stop_no_program(recorder: Recorder):
    code = """
        import nvprobe, numpy
        for payload in (numpy.int64(3), numpy.float32(0.5), True, 2**70):
            with nvprobe.range("payload", payload=payload):
                pass
        with nvprobe.range("half of a pair \\udcff"):
            pass
        nvprobe.annotate(int, name="\\udcff")()
    """
    recording = recorder.run(code)
    assert not recording.completed.stderr
    ranges = recording.ranges("user")
    assert [one.name for one in ranges] == [*["payload"] * 4, "half of a pair ?"]
    assert [one.payload for one in ranges][::2] == [3, 1, None]
