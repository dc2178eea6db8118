#include "host-daemon/softgpu/engine/exec/format.h"

#include <cstdio>
#include <cstring>

namespace gantry::softgpu::exec {
namespace {

constexpr int kMaxWidth = 4096;  // a kernel may not make the host build huge strings

class Arguments {
public:
    Arguments(const LaneMemory& memory, std::uint64_t buffer) : memory_(memory), buffer_(buffer) {}
    template <typename T>
    T next() {
        offset_ = (offset_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value{};
        if (buffer_ != 0) {
            memory_.read(buffer_ + offset_, &value, sizeof value);
        }
        offset_ += sizeof(T);
        return value;
    }

    [[nodiscard]] const LaneMemory& memory() const { return memory_; }

private:
    const LaneMemory& memory_;
    std::uint64_t buffer_;
    std::uint64_t offset_ = 0;
};

struct Spec {
    char text[48] = "%";
    std::size_t length = 1;
    void add(char c) {
        if (length + 8 < sizeof text) {
            text[length++] = c;
        }
    }
    void add_number(int value) {
        char digits[16];
        std::snprintf(digits, sizeof digits, "%d", value);
        for (const char* c = digits; *c != '\0'; ++c) {
            add(*c);
        }
    }
    const char* with(const char* tail) {
        std::strcpy(text + length, tail);
        return text;
    }
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
template <typename T>
void append(std::string& out, const char* spec, T value) {
    char local[512];
    const int length = std::snprintf(local, sizeof local, spec, value);
    if (length < 0) {
        return;
    }
    if (static_cast<std::size_t>(length) < sizeof local) {
        out.append(local, static_cast<std::size_t>(length));
        return;
    }
    const std::size_t begin = out.size();
    out.resize(begin + static_cast<std::size_t>(length) + 1);
    std::snprintf(&out[begin], static_cast<std::size_t>(length) + 1, spec, value);
    out.resize(begin + static_cast<std::size_t>(length));
}
#pragma GCC diagnostic pop

int parse_number(const char*& at, Arguments& arguments, int& used) {
    int value = 0;
    if (*at == '*') {
        ++at;
        ++used;
        value = arguments.next<int>();
    } else {
        while (*at >= '0' && *at <= '9') {
            value = value < kMaxWidth ? value * 10 + (*at - '0') : value;
            ++at;
        }
    }
    return value > kMaxWidth ? kMaxWidth : value < -kMaxWidth ? -kMaxWidth : value;
}

void append_string(std::string& out, Spec& spec, const LaneMemory& memory, std::uint64_t address) {
    thread_local std::string text;  // Reading it may end the launch.
    text.clear();
    if (address != 0) {
        memory.append_text(address, text);
    }
    append(out, spec.with("s"), address != 0 ? text.c_str() : "(null)");
}

/// One conversion, `at` behind its '%'. Returns false if it is none (the text stays as it is).
bool convert(std::string& out, const char*& at, Arguments& arguments, int& used) {
    Spec spec;
    while (*at == '-' || *at == '+' || *at == ' ' || *at == '#' || *at == '0') {
        spec.add(*at++);
    }
    if (*at == '*' || (*at >= '1' && *at <= '9')) {
        spec.add_number(parse_number(at, arguments, used));
    }
    if (*at == '.') {
        ++at;
        spec.add('.');
        spec.add_number(parse_number(at, arguments, used));
    }
    int longs = 0;
    bool narrow = false;
    while (*at == 'l' || *at == 'h' || *at == 'z' || *at == 'j' || *at == 't' || *at == 'L') {
        longs += *at == 'h' ? 0 : 1;
        narrow = narrow || *at == 'h';
        ++at;
    }
    const char kind = *at;
    if (kind == '\0') {
        return false;
    }
    ++at;
    ++used;
    const char tail[4] = {'l', 'l', kind, '\0'};
    switch (kind) {
        case 'd':
        case 'i': {
            long long value = longs > 0 ? arguments.next<long long>() : arguments.next<int>();
            value = narrow ? static_cast<short>(value) : value;
            append(out, spec.with(tail), value);
            return true;
        }
        case 'u':
        case 'o':
        case 'x':
        case 'X': {
            unsigned long long value =
                longs > 0 ? arguments.next<unsigned long long>() : arguments.next<unsigned>();
            value = narrow ? static_cast<unsigned short>(value) : value;
            append(out, spec.with(tail), value);
            return true;
        }
        case 'f':
        case 'F':
        case 'e':
        case 'E':
        case 'g':
        case 'G':
        case 'a':
        case 'A': append(out, spec.with(tail + 2), arguments.next<double>()); return true;
        case 'c': append(out, spec.with("c"), arguments.next<int>()); return true;
        case 's':
            append_string(out, spec, arguments.memory(), arguments.next<std::uint64_t>());
            return true;
        case 'p': append(out, spec.with("p"), arguments.next<void*>()); return true;
        default:
            --used;
            out += '%';
            out += kind;
            return true;
    }
}

}  // namespace

int format_printf(std::string& out, const char* format, const LaneMemory& memory,
                  std::uint64_t arguments) {
    if (format == nullptr) {
        return -1;
    }
    Arguments list(memory, arguments);
    int used = 0;
    const char* at = format;
    while (*at != '\0') {
        if (*at != '%') {
            out += *at++;
            continue;
        }
        ++at;
        if (*at == '%') {
            out += *at++;
        } else if (!convert(out, at, list, used)) {
            out += '%';
        }
    }
    return used;
}

}  // namespace gantry::softgpu::exec
