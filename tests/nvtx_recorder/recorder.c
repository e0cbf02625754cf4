/* An NVTX tool for tests: writes every event of every domain to a file, one line each.
 *
 * NVTX loads it through NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2 on the first NVTX
 * call of the process. The declarations below are the public NVTX v3 ABI, spelled out so that the
 * tests need gcc and nothing else.
 *
 * NVPROBE_TEST_NVTX names the output file; ".<pid>" is appended, so children write their own.
 * A line: kind, thread id, unix nanoseconds, domain, category, payload ("-" for none), text;
 * separated by tabs, tabs and newlines in the text replaced by spaces.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef void (*function_pointer)(void);
typedef function_pointer **function_table;
typedef const void *(*get_export_table)(uint32_t);
typedef struct {
    size_t struct_size;
    int (*get_module_function_table)(int module, function_table *table, unsigned int *size);
} export_callbacks;

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    union { uint64_t u64; int64_t i64; double f64; uint32_t u32; int32_t i32; float f32; } payload;
    int32_t message_type;
    const void *message;
} event_attributes;

enum { EXPORT_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum { MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

struct named { char *name; };

static int output(void)
{
    static __thread int file = -1;
    static __thread pid_t owner = 0;
    if (file >= 0 && owner == getpid())
        return file;
    const char *path = getenv("NVPROBE_TEST_NVTX");
    char full[4096];
    snprintf(full, sizeof full, "%s.%d", path ? path : "/dev/null", (int)getpid());
    if (!path)
        snprintf(full, sizeof full, "/dev/null");
    owner = getpid();
    return file = open(full, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void emit(const char *kind, const char *domain, uint32_t category, const char *payload,
                 const char *text)
{
    struct timespec now;
    char line[4096];
    clock_gettime(CLOCK_REALTIME, &now);
    int used = snprintf(line, sizeof line - 2, "%s\t%ld\t%lld\t%s\t%u\t%s\t", kind,
                        (long)syscall(SYS_gettid),
                        (long long)now.tv_sec * 1000000000LL + now.tv_nsec, domain, category,
                        payload);
    for (const char *c = text; *c && used < (int)sizeof line - 2; c++)
        line[used++] = (*c == '\t' || *c == '\n') ? ' ' : *c;
    line[used++] = '\n';
    if (write(output(), line, used) != used)
        _exit(97);
}

static const char *domain_name(const struct named *domain) { return domain ? domain->name : ""; }

static void emit_event(const char *kind, const struct named *domain, const event_attributes *event)
{
    char payload[64] = "-";
    const char *text = "";
    switch (event->payload_type) {
    case 1: snprintf(payload, sizeof payload, "%llu", (unsigned long long)event->payload.u64); break;
    case 2: snprintf(payload, sizeof payload, "%lld", (long long)event->payload.i64); break;
    case 3: snprintf(payload, sizeof payload, "%.17g", event->payload.f64); break;
    }
    if (event->message_type == MESSAGE_ASCII && event->message)
        text = event->message;
    if (event->message_type == MESSAGE_REGISTERED && event->message)
        text = ((const struct named *)event->message)->name;
    emit(kind, domain_name(domain), event->category, payload, text);
}

static struct named *make_named(const char *name)
{
    struct named *named = malloc(sizeof *named);
    named->name = strdup(name ? name : "");
    return named;
}

static __thread int depth = 0;
static int push_a(const char *text) { emit("push", "", 0, "-", text); return depth++; }
static int push_ex(const event_attributes *event) { emit_event("push", 0, event); return depth++; }
static int pop(void) { emit("pop", "", 0, "-", ""); return --depth; }
static void mark_a(const char *text) { emit("mark", "", 0, "-", text); }
static void mark_ex(const event_attributes *event) { emit_event("mark", 0, event); }

static void *domain_create(const char *name)
{
    emit("domain", name, 0, "-", name);
    return make_named(name);
}
static void *string_register(struct named *domain, const char *text)
{
    emit("string", domain_name(domain), 0, "-", text);
    return make_named(text);
}
static void category_name(struct named *domain, uint32_t category, const char *name)
{
    emit("category", domain_name(domain), category, "-", name);
}
static int domain_push(struct named *domain, const event_attributes *event)
{
    emit_event("push", domain, event);
    return depth++;
}
static int domain_pop(struct named *domain)
{
    emit("pop", domain_name(domain), 0, "-", "");
    return --depth;
}
static void domain_mark(struct named *domain, const event_attributes *event)
{
    emit_event("mark", domain, event);
}
static uint64_t domain_start(struct named *domain, const event_attributes *event)
{
    static uint64_t next = 0;
    emit_event("start", domain, event);
    return __atomic_add_fetch(&next, 1, __ATOMIC_SEQ_CST);
}
static void domain_end(struct named *domain, uint64_t id)
{
    char payload[32];
    snprintf(payload, sizeof payload, "%llu", (unsigned long long)id);
    emit("end", domain_name(domain), 0, payload, "");
}

static void install(function_table table, unsigned int size, unsigned int index, void *function)
{
    if (index < size && table[index])
        *table[index] = (function_pointer)function;
}

int InitializeInjectionNvtx2(get_export_table get_table)
{
    const export_callbacks *callbacks = get_table(EXPORT_CALLBACKS);
    function_table table;
    unsigned int size;
    if (!callbacks || !callbacks->get_module_function_table(MODULE_CORE, &table, &size))
        return 0;
    install(table, size, 1, mark_ex);
    install(table, size, 2, mark_a);
    install(table, size, 8, push_ex);
    install(table, size, 9, push_a);
    install(table, size, 11, pop);
    if (!callbacks->get_module_function_table(MODULE_CORE2, &table, &size))
        return 0;
    install(table, size, 1, domain_mark);
    install(table, size, 2, domain_start);
    install(table, size, 3, domain_end);
    install(table, size, 4, domain_push);
    install(table, size, 5, domain_pop);
    install(table, size, 8, category_name);
    install(table, size, 10, string_register);
    install(table, size, 12, domain_create);
    return 1;
}
