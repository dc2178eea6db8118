// libgantry-nvtx.so: NVTX 3 loads it where NVTX_INJECTION64_PATH names it, and calls it for each
// range; it hands them to libcuda.so.1 (driver/context/own_table.h), which knows what is profiled.
//
// Of another libcuda.so.1 it asks nothing, and NVTX then calls nobody. Names: of a domain's range
// "DOMAIN: NAME"; what is longer than a profile's names is cut. Domains and registered strings are
// kept for good, as NVTX has them; where there are too many the rest have no name. Marks,
// categories, colours and payloads are not used.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "guest-shim/driver/context/own_table.h"
#include "guest-shim/nvtx/nvtx_abi.h"
#include "proto/wire/profile.h"

namespace gantry::nvtx {
namespace {

constexpr std::uint32_t kNamesMax = 4096;

struct Name {
    char text[wire::kProfileNameBytes];
};

const shim::OwnTable* g_shim = nullptr;
Name g_names[kNamesMax];  // A page is touched when it is used.
std::atomic<std::uint32_t> g_name_count{0};

void copy_name(Name* out, const char* text) {
    std::size_t length = text != nullptr ? strnlen(text, sizeof(out->text) - 1) : 0;
    std::memcpy(out->text, text, length);
    out->text[length] = '\0';
}

void copy_name(Name* out, const wchar_t* text) {
    std::size_t i = 0;
    for (; text != nullptr && i + 1 < sizeof(out->text) && text[i] != L'\0'; ++i) {
        out->text[i] = text[i] >= L' ' && text[i] <= L'~' ? static_cast<char>(text[i]) : '?';
    }
    out->text[i] = '\0';
}

/// What NVTX calls a handle: where the name is.
template <typename Char>
void* keep_name(const Char* text) {
    const std::uint32_t number = g_name_count.fetch_add(1, std::memory_order_relaxed);
    if (number >= kNamesMax) {
        g_name_count.store(kNamesMax, std::memory_order_relaxed);
        return nullptr;
    }
    copy_name(&g_names[number], text);
    return &g_names[number];
}

/// False for what keep_name() has not returned.
bool is_kept(const void* handle) {
    const auto* const name = static_cast<const Name*>(handle);
    return name >= g_names && name < g_names + kNamesMax;
}

Name name_of(const void* domain, const EventAttributes* event) {
    Name message{};
    if (event != nullptr && event->message != nullptr && event->size >= sizeof(EventAttributes)) {
        switch (event->message_type) {
            case kAscii: copy_name(&message, static_cast<const char*>(event->message)); break;
            case kUnicode: copy_name(&message, static_cast<const wchar_t*>(event->message)); break;
            case kRegistered:
                if (is_kept(event->message)) {
                    message = *static_cast<const Name*>(event->message);
                }
                break;
            default: break;
        }
    }
    if (!is_kept(domain)) {
        return message;
    }
    Name out = *static_cast<const Name*>(domain);
    std::strncat(out.text, ": ", sizeof(out.text) - 1 - std::strlen(out.text));
    std::strncat(out.text, message.text, sizeof(out.text) - 1 - std::strlen(out.text));
    return out;
}

// ---- what NVTX calls ----------------------------------------------------------------------------

int domain_push(const void* domain, const EventAttributes* event) {
    return g_shim->push_range(name_of(domain, event).text);
}
int push_ex(const EventAttributes* event) { return domain_push(nullptr, event); }
template <typename Char>
int push(const Char* text) {
    Name name{};
    copy_name(&name, text);
    return g_shim->push_range(name.text);
}
int pop() { return g_shim->pop_range(); }
int domain_pop(const void*) { return g_shim->pop_range(); }

std::uint64_t domain_start(const void* domain, const EventAttributes* event) {
    return g_shim->start_range(name_of(domain, event).text);
}
std::uint64_t start_ex(const EventAttributes* event) { return domain_start(nullptr, event); }
template <typename Char>
std::uint64_t start(const Char* text) {
    Name name{};
    copy_name(&name, text);
    return g_shim->start_range(name.text);
}
void end(std::uint64_t range) { g_shim->end_range(range); }
void domain_end(const void*, std::uint64_t range) { g_shim->end_range(range); }

template <typename Char>
void* register_string(const void*, const Char* text) {
    return keep_name(text);
}
template <typename Char>
void* create_domain(const Char* text) {
    return keep_name(text);
}

// ---- being loaded -------------------------------------------------------------------------------

struct Entry {
    unsigned number;
    Function function;
};

template <typename F>
Entry entry(unsigned number, F* function) {
    return {number, reinterpret_cast<Function>(function)};
}

template <std::size_t kCount>
bool serve(const CallbacksTable& table, Module module, const Entry (&entries)[kCount]) {
    Function** functions = nullptr;
    unsigned count = 0;
    if (table.module_functions(module, &functions, &count) == 0 || functions == nullptr) {
        return false;
    }
    for (const Entry& one : entries) {
        if (one.number < count && functions[one.number] != nullptr) {
            *functions[one.number] = one.function;
        }
    }
    return true;
}

/// nullptr where libcuda.so.1 is not Gantry's, or is of an older Gantry.
const shim::OwnTable* find_shim() {
    using GetExportTable = int (*)(const void**, const void*);
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
        return nullptr;
    }
    const auto get = reinterpret_cast<GetExportTable>(dlsym(library, "cuGetExportTable"));
    const void* found = nullptr;
    if (get == nullptr || get(&found, shim::kOwnTableId) != 0 || found == nullptr) {
        return nullptr;
    }
    const auto* table = static_cast<const shim::OwnTable*>(found);
    return table->bytes >= sizeof(*table) ? table : nullptr;
}

}  // namespace
}  // namespace gantry::nvtx

/// Not 0: NVTX is served.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    gantry::nvtx::GetTable get_table) noexcept {
    using namespace gantry::nvtx;
    const void* const found = get_table != nullptr ? get_table(kCallbacksTable) : nullptr;
    const auto* table = static_cast<const CallbacksTable*>(found);
    if (table == nullptr || table->bytes < sizeof(*table)) {
        return 0;
    }
    if (g_shim == nullptr) {
        g_shim = find_shim();
    }
    if (g_shim == nullptr) {
        return 0;
    }
    const Entry core[] = {entry(kRangeStartEx, start_ex),      entry(kRangeStartA, start<char>),
                          entry(kRangeStartW, start<wchar_t>), entry(kRangeEnd, end),
                          entry(kRangePushEx, push_ex),        entry(kRangePushA, push<char>),
                          entry(kRangePushW, push<wchar_t>),   entry(kRangePop, pop)};
    const Entry core2[] = {entry(kDomainRangeStartEx, domain_start),
                           entry(kDomainRangeEnd, domain_end),
                           entry(kDomainRangePushEx, domain_push),
                           entry(kDomainRangePop, domain_pop),
                           entry(kDomainRegisterStringA, register_string<char>),
                           entry(kDomainRegisterStringW, register_string<wchar_t>),
                           entry(kDomainCreateA, create_domain<char>),
                           entry(kDomainCreateW, create_domain<wchar_t>)};
    return serve(*table, kCore, core) && serve(*table, kCore2, core2) ? 1 : 0;
}
