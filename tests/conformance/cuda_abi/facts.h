// A fact of the ABI: a named number. Both lists come from one generated file, in one order.
#pragma once

#include <cstddef>

struct AbiFact {
    const char* name;
    long long value;
};

struct AbiFacts {
    const AbiFact* facts;
    std::size_t count;
};

AbiFacts facts_ours();
AbiFacts facts_toolkit();

// A C cast, since some constants are handles or addresses.
#define VALUE(name) {#name, (long long)(name)},
#define SIZE(type) {"sizeof " #type, sizeof(type)}, {"alignof " #type, alignof(type)},
#define FIELD(type, member)                                  \
    {"offsetof " #type " " #member, offsetof(type, member)}, \
        {"sizeof " #type " " #member, sizeof(static_cast<type*>(nullptr)->member)},
