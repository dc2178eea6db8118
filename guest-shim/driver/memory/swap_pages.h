// Other pages in the place of some, with the same content.
//
// The pages may be those of the caller's own stack: programs register a variable of the function
// that they are in. Whatever is written there between the copy and the system call that exchanges
// the pages would be lost, such as the address that a function returns to. So between the first
// byte and the call's end nothing is: no function is called, and no register is put away.
//
// What other threads write there meanwhile, and a signal's handler, may be lost.
#pragma once

#include <cstdint>

#if !defined(__x86_64__)
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace gantry::shim {

struct SystemCall {
    long number;
    std::uint64_t arguments[6];
};

/// Copies `bytes`, then makes the call. What the system answers; a negative error number.
inline long copy_then_call(std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
                           const SystemCall& call) noexcept {
    const std::uint64_t* const with = call.arguments;
#if defined(__x86_64__)
    long answer = call.number;
    // All are read before one lies in its register: a sanitizer calls something at a read.
    const std::uint64_t first = with[0];
    const std::uint64_t second = with[1];
    const std::uint64_t third = with[2];
    const std::uint64_t fourth = with[3];
    const std::uint64_t fifth = with[4];
    const std::uint64_t sixth = with[5];
    register std::uint64_t in_r10 asm("r10") = fourth;
    register std::uint64_t in_r8 asm("r8") = fifth;
    register std::uint64_t in_r9 asm("r9") = sixth;
    asm volatile(
        "rep movsb\n\t"
        "mov %[first], %%rdi\n\t"
        "mov %[second], %%rsi\n\t"
        "syscall"
        : "+&a"(answer), "+&D"(to), "+&S"(from), "+&c"(bytes)
        : [first] "r"(first), [second] "r"(second), "d"(third), "r"(in_r10), "r"(in_r8), "r"(in_r9)
        : "r11", "memory");
    return answer;
#else
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    const long answer =
        ::syscall(call.number, with[0], with[1], with[2], with[3], with[4], with[5]);
    return answer < 0 ? -errno : answer;
#endif
}

}  // namespace gantry::shim
