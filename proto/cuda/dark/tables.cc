// The tables themselves. Word 0 is the size in bytes (context-local storage has none); the other
// words are functions. A slot nobody was seen to call answers 801 (not supported), never a crash.
// Sizes are those of a 580 driver.
#include <cstring>

#include "proto/cuda/dark/internal.h"

namespace gantry::dark {
namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotInitialized = 3;
constexpr int kNotFound = 500;
constexpr int kNotSupported = 801;

Callbacks g_callbacks;
bool g_configured = false;

using Slot = void*;

template <typename Function>
Slot slot(Function* function) {
    return reinterpret_cast<Slot>(function);
}

int refuse() { return kNotSupported; }
int accept() { return 0; }

// ---- 6bd5fb6c: the runtime's interface ----------------------------------------------------------
Slot g_interface[13];

int interface_load(void** module, const void* image) {
    return g_callbacks.load_module(module, image);
}
int interface_load_extra(void** module, const void* image, void*, void*, std::uint32_t) {
    return g_callbacks.load_module(module, image);
}
int interface_load_header(const void* image, void** module, void*, void*, std::uint32_t) {
    return g_callbacks.load_module(module, image);
}
int interface_primary(void** context, int ordinal) {
    return context == nullptr ? kInvalidValue : g_callbacks.primary_context(context, ordinal);
}

// ---- a094798c: callback enables, indexed by callback id; all off --------------------------------
constexpr std::size_t kEnableCount = 1024;
constexpr std::size_t kDomainCount = 14;
std::uint32_t g_enables[4096];
std::uint64_t g_domains[64];
Slot g_hooks[7];

int hooks_enables(void** array, std::size_t* count) {
    *array = g_enables;
    *count = kEnableCount;
    return 0;
}
int hooks_domains(void** array, std::size_t* count) {
    *array = g_domains;
    *count = kDomainCount;
    return 0;
}

// ---- 42d85a81: tools TLS; c693336e: context-local storage; 263e8860: context checks -------------
Slot g_tools_tls[3];
Slot g_storage[4];
Slot g_checks[15];

int tools_tls_context(void** context) {
    if (context == nullptr) {
        return kInvalidValue;
    }
    *context = nullptr;
    (void)g_callbacks.current_context(context);
    return 0;  // An error here makes cuBLAS refuse to start, so no context is a null, not an error.
}
int checks_context(void*, std::uint32_t* result, void** detail) {
    if (result != nullptr) {
        *result = 0;
    }
    (void)detail;
    return 0;
}

// ---- d4082055: integrity ------------------------------------------------------------------------
Slot g_integrity[3];

int integrity_slot(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* result) {
    return integrity_digest(version, unix_seconds, result, g_interface, g_integrity,
                            g_integrity[1]);
}

// ---- 21318c60: tools context (cuBLAS, cuFFT) ----------------------------------------------------
Slot g_tools_context[93];
std::uint64_t g_stream_object[64];

int tools_context_state(void*, std::uint64_t* out) {
    if (out != nullptr) {
        *out = 0;
    }
    return 0;
}
int tools_context_stream(void*, void*, void** object) {
    if (object != nullptr) {
        *object = g_stream_object;
    }
    return 0;
}
int tools_context_stream_state(void*, void*, std::uint64_t* out) {
    if (out != nullptr) {
        *out = 0;
    }
    return 0;
}

// ---- 6e163fbe: tools module (cuFFT lists a module's functions) ----------------------------------
Slot g_tools_module[99];

int tools_module_functions(void*, void* module, FunctionVisitor visitor, void* user) {
    return visitor == nullptr ? 0 : g_callbacks.visit_functions(module, visitor, user);
}

// ---- 1734dc26: JIT side (its absence crashes cuBLASLt); 0ca50b8c: context creation bypass -------
Slot g_jit_side[17];
Slot g_bypass[2];

int bypass_create(void** context, unsigned flags, int ordinal) {
    return context == nullptr ? kInvalidValue : g_callbacks.create_context(context, flags, ordinal);
}

template <std::size_t kCount>
void prepare(Slot (&table)[kCount], Slot filler) {
    for (Slot& entry : table) {
        entry = filler;
    }
    table[0] = reinterpret_cast<Slot>(sizeof table);
}

struct Entry {
    std::uint8_t uuid[16];
    const void* table;
};

constexpr std::size_t kTableCount = 10;
Entry g_directory[kTableCount] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     g_interface},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     g_hooks},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     g_tools_tls},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     g_storage},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     g_checks},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     g_integrity},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     g_tools_context},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     g_tools_module},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
      0xca},
     g_jit_side},
    {{0x0c, 0xa5, 0x0b, 0x8c, 0x10, 0x04, 0x92, 0x9a, 0x89, 0xa7, 0xd0, 0xdf, 0x10, 0xe7, 0x72,
      0x86},
     g_bypass},
};

void fill_tables() {
    prepare(g_interface, slot(refuse));
    g_interface[1] = slot(interface_load);
    g_interface[2] = slot(interface_primary);
    g_interface[6] = slot(interface_load_extra);
    g_interface[7] = slot(accept);
    g_interface[8] = slot(interface_load_header);
    g_interface[12] = slot(accept);

    prepare(g_hooks, slot(accept));
    g_hooks[2] = slot(hooks_enables);
    g_hooks[6] = slot(hooks_domains);

    prepare(g_tools_tls, slot(accept));
    g_tools_tls[2] = slot(tools_tls_context);

    g_storage[0] = slot(storage_put);
    g_storage[1] = slot(storage_delete);
    g_storage[2] = slot(storage_get);
    g_storage[3] = nullptr;

    prepare(g_checks, slot(refuse));
    g_checks[2] = slot(checks_context);
    g_checks[3] = slot(accept);

    prepare(g_integrity, slot(accept));
    g_integrity[1] = slot(integrity_slot);

    prepare(g_tools_context, slot(refuse));
    g_tools_context[4] = slot(tools_context_state);
    g_tools_context[39] = slot(tools_context_stream_state);
    g_tools_context[51] = slot(tools_context_stream);

    prepare(g_tools_module, slot(refuse));
    g_tools_module[7] = slot(tools_module_functions);

    prepare(g_jit_side, slot(refuse));
    prepare(g_bypass, slot(refuse));
    g_bypass[1] = slot(bypass_create);
}

}  // namespace

const Callbacks& callbacks() { return g_callbacks; }

void configure(const Callbacks& callbacks) {
    g_callbacks = callbacks;
    if (!g_configured) {
        fill_tables();
        g_configured = true;
    }
}

int get_export_table(const void** table, const void* uuid) {
    if (table == nullptr || uuid == nullptr) {
        return kInvalidValue;
    }
    *table = nullptr;
    if (!g_configured) {
        return kNotInitialized;
    }
    const auto* wanted = static_cast<const std::uint8_t*>(uuid);
    for (const Entry& entry : g_directory) {
        if (std::memcmp(entry.uuid, wanted, sizeof entry.uuid) == 0) {
            *table = entry.table;
            return 0;
        }
    }
    *table = g_callbacks.own_table(wanted);
    return *table != nullptr ? 0 : kNotFound;
}

}  // namespace gantry::dark
