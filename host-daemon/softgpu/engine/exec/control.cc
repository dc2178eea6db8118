// Branches, calls and returns, exits, and what depends on a function's frame.
//
// A call pushes a return record per lane; lanes of one fragment may hold different records, and
// `ret` then splits them. A lane that enters a function that it is already in (recursion) has
// that function's registers saved first and restored at the return.
#include <x86intrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/kernel_code.h"
#include "host-daemon/softgpu/engine/run/scheduler.h"
#include "host-daemon/softgpu/engine/warp.h"
#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu::exec {
namespace {

template <typename Body>
void for_active(std::uint32_t mask, Body body) {
    for (; mask != 0; mask &= mask - 1) {
        body(static_cast<std::uint32_t>(__builtin_ctz(mask)));
    }
}

const Inst* do_branch(Warp&, const Inst* inst) { return inst->target; }

template <bool Negated>
const Inst* do_branch_if(Warp& warp, const Inst* inst) {
    const std::uint32_t p = warp.predicate(inst->guard);
    const std::uint32_t taken = warp.mask & (Negated ? ~p : p);
    if (taken == warp.mask) {
        return inst->target;
    }
    if (taken == 0) {
        return inst + 1;
    }
    warp.push(inst->target, taken);
    warp.push(inst + 1, warp.mask & ~taken);
    return stop_instruction();
}

const Inst* do_branch_indexed(Warp& warp, const Inst* inst) {
    const auto* table = static_cast<const BranchTable*>(inst->table);
    const std::uint32_t* index = warp.slot<std::uint32_t>(inst->a);
    std::uint32_t left = warp.mask;
    const Inst* only = nullptr;
    while (left != 0) {
        const auto lane = static_cast<std::uint32_t>(__builtin_ctz(left));
        const std::uint32_t wanted = index[lane];
        if (wanted >= table->targets.size()) {
            raise_fault(warp, inst, LaunchError::kInvalidPc, lane, wanted,
                        "brx.idx index outside its list of targets");
        }
        std::uint32_t same = 0;
        for_active(left,
                   [&](std::uint32_t other) { same |= index[other] == wanted ? 1U << other : 0U; });
        left &= ~same;
        if (same == warp.mask) {
            only = table->targets[wanted];
        } else {
            warp.push(table->targets[wanted], same);
        }
    }
    return only != nullptr ? only : stop_instruction();
}

const Inst* do_leave(Warp& warp, const Inst*) {
    retire_lanes(warp, warp.mask);
    return stop_instruction();
}

std::uint8_t* frame_of(Warp& warp, std::uint32_t lane) {
    return warp.local + std::uint64_t{warp.local_stride} * lane + warp.frame[lane];
}

void save_registers(Warp& warp, const CodeFunction& function, std::uint32_t lane) {
    std::vector<std::uint8_t>& saved = warp.saved_registers[lane];
    // Every slot of the region, whatever its width: predicates are one bit of a shared word, so
    // whole words of the lane's positions are kept and predicates bit by bit on restore.
    for (std::uint32_t at = function.region_begin; at < function.region_end; at += 4) {
        const auto* word = reinterpret_cast<const std::uint8_t*>(warp.file + at);
        saved.insert(saved.end(), word, word + 4);
    }
}

/// Which lane a word of the region belongs to depends on the slot's width; see region_words.
void restore_registers(Warp& warp, const Inst* inst, const CodeFunction& function,
                       std::uint32_t lane) {
    std::vector<std::uint8_t>& saved = warp.saved_registers[lane];
    const std::size_t bytes = function.region_end - function.region_begin;
    if (saved.size() < bytes) {
        raise_fault(warp, inst, LaunchError::kHardwareStackError, lane, 0, "call stack is broken");
    }
    const std::uint8_t* from = saved.data() + saved.size() - bytes;
    std::uint8_t* const to = warp.file + function.region_begin;
    const std::uint32_t bit = 1U << lane;
    for (std::uint32_t at = 0; at < function.predicate_bytes; at += 4) {
        std::uint32_t now = 0;
        std::uint32_t then = 0;
        std::memcpy(&now, to + at, 4);
        std::memcpy(&then, from + at, 4);
        now = (now & ~bit) | (then & bit);
        std::memcpy(to + at, &now, 4);
    }
    for (std::uint32_t at = function.words_begin; at < function.wides_begin; at += 128) {
        std::memcpy(to + at + 4 * lane, from + at + 4 * lane, 4);
    }
    for (std::uint32_t at = function.wides_begin; at + 256 <= bytes; at += 256) {
        std::memcpy(to + at + 8 * lane, from + at + 8 * lane, 8);
    }
    saved.resize(saved.size() - bytes);
}

/// Copies arguments, moves the lanes' frames and pushes their return records.
void enter(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t callee,
           std::uint32_t lanes) {
    const KernelCode& code = *warp.block->code;
    const CodeFunction& function = code.functions[callee];
    const std::uint32_t own = code.functions[site.caller].frame_bytes;
    // A prototype may have larger arguments than the function that is called has.
    std::uint64_t from_bytes = 0;
    std::uint64_t to_bytes = function.frame_bytes;
    for (const CallArgument& argument : site.in) {
        from_bytes = std::max(from_bytes, std::uint64_t{argument.from} + argument.size);
        to_bytes = std::max(to_bytes, std::uint64_t{argument.to} + argument.size);
    }
    for_active(lanes, [&](std::uint32_t lane) {
        const std::uint32_t depth = warp.depth[lane];
        const std::uint32_t next = warp.frame[lane] + own + warp.frame_extra[lane];
        if (std::uint64_t{next} + to_bytes + 64 > warp.local_stride || depth >= 4096 ||
            warp.frame[lane] + from_bytes > warp.local_stride) {
            raise_fault(warp, inst, LaunchError::kHardwareStackError, lane, next,
                        "the thread's stack is full (raise the stack size limit)");
        }
        if (warp.returns.size() <= depth) {
            warp.returns.emplace_back();
        }
        std::uint8_t* const from = frame_of(warp, lane);
        std::uint8_t* const to = warp.local + std::uint64_t{warp.local_stride} * lane + next;
        for (const CallArgument& argument : site.in) {
            std::memcpy(to + argument.to, from + argument.from, argument.size);
        }
        ReturnRecord& record = warp.returns[depth][lane];
        record.ip = inst + 1;
        record.frame = warp.frame[lane];
        record.extra = warp.frame_extra[lane];
        record.function = callee;
        record.restore = false;
        if (function.recursive) {
            std::vector<std::uint16_t>& active = warp.active_functions[lane];
            record.restore = std::find(active.begin(), active.end(), callee) != active.end() ||
                             callee == site.caller;
            active.push_back(static_cast<std::uint16_t>(callee));
            if (record.restore) {
                save_registers(warp, function, lane);
            }
        }
        warp.frame[lane] = next;
        warp.frame_extra[lane] = 0;
        warp.depth[lane] = static_cast<std::uint16_t>(depth + 1);
    });
}

const Inst* do_call(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const CallSite*>(inst->table);
    if (site.target != nullptr) {
        enter(warp, inst, site, site.callee, warp.mask);
        return site.target;
    }
    const KernelCode& code = *warp.block->code;
    const std::uint64_t* pointer = warp.slot<std::uint64_t>(inst->a);
    std::uint32_t left = warp.mask;
    const Inst* only = nullptr;
    while (left != 0) {
        const auto lane = static_cast<std::uint32_t>(__builtin_ctz(left));
        const std::uint64_t wanted = pointer[lane];
        std::uint32_t same = 0;
        for_active(left, [&](std::uint32_t other) {
            same |= pointer[other] == wanted ? 1U << other : 0U;
        });
        left &= ~same;
        const std::uint64_t index = wanted / 8 - 1;
        const bool known = wanted % 8 == 0 && wanted != 0 && index < code.code_function_of.size() &&
                           code.code_function_of[index] != 0xffffffffU;
        if (!known) {
            raise_fault(warp, inst, LaunchError::kInvalidPc, lane, wanted,
                        "call through a pointer that is no function's address");
        }
        const std::uint32_t callee = code.code_function_of[index];
        enter(warp, inst, site, callee, same);
        const Inst* target = &code.code[code.functions[callee].first_inst];
        if (same == warp.mask) {
            only = target;
        } else {
            warp.push(target, same);
        }
    }
    return only != nullptr ? only : stop_instruction();
}

const Inst* do_return(Warp& warp, const Inst* inst) {
    const KernelCode& code = *warp.block->code;
    const Inst* only = nullptr;
    std::uint32_t left = warp.mask;
    while (left != 0) {
        const auto first = static_cast<std::uint32_t>(__builtin_ctz(left));
        const Inst* target = nullptr;
        std::uint32_t same = 0;
        for_active(left, [&](std::uint32_t lane) {
            const std::uint32_t depth = warp.depth[lane];
            if (depth == 0) {
                raise_fault(warp, inst, LaunchError::kHardwareStackError, lane, 0,
                            "return without a call");
            }
            const Inst* back = warp.returns[depth - 1U][lane].ip;
            if (lane == first) {
                target = back;
            }
            same |= back == target ? 1U << lane : 0U;
        });
        for_active(same, [&](std::uint32_t lane) {
            const ReturnRecord record = warp.returns[warp.depth[lane] - 1U][lane];
            // Results are fetched by the following call_results from where the frame was.
            warp.returned_frame[lane] = warp.frame[lane];
            warp.frame[lane] = record.frame;
            warp.frame_extra[lane] = record.extra;
            --warp.depth[lane];
            const CodeFunction& function = code.functions[record.function];
            if (function.recursive) {
                warp.active_functions[lane].pop_back();
                if (record.restore) {
                    restore_registers(warp, inst, function, lane);
                }
            }
        });
        left &= ~same;
        if (same == warp.mask) {
            only = target;
        } else {
            warp.push(target, same);
        }
    }
    return only != nullptr ? only : stop_instruction();
}

const Inst* do_call_results(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const CallSite*>(inst->table);
    std::uint64_t from_bytes = 0;
    std::uint64_t to_bytes = 0;
    for (const CallArgument& result : site.out) {
        from_bytes = std::max(from_bytes, std::uint64_t{result.from} + result.size);
        to_bytes = std::max(to_bytes, std::uint64_t{result.to} + result.size);
    }
    for_active(warp.mask, [&](std::uint32_t lane) {
        if (warp.returned_frame[lane] + from_bytes > warp.local_stride ||
            warp.frame[lane] + to_bytes > warp.local_stride) {
            raise_fault(warp, inst, LaunchError::kHardwareStackError, lane, from_bytes,
                        "the results of a call lie outside the thread's stack");
        }
        const std::uint8_t* from =
            warp.local + std::uint64_t{warp.local_stride} * lane + warp.returned_frame[lane];
        std::uint8_t* const to = frame_of(warp, lane);
        for (const CallArgument& result : site.out) {
            std::memcpy(to + result.to, from + result.from, result.size);
        }
    });
    return inst + 1;
}

void put(Warp& warp, const Inst* inst, std::uint32_t lane, std::uint64_t value) {
    if ((inst->flags & 1U) != 0) {
        warp.slot<std::uint64_t>(inst->dst)[lane] = value;
    } else {
        warp.slot<std::uint32_t>(inst->dst)[lane] = static_cast<std::uint32_t>(value);
    }
}

std::uint64_t get(Warp& warp, const Inst* inst, std::uint32_t lane) {
    return (inst->flags & 1U) != 0 ? warp.slot<std::uint64_t>(inst->a)[lane]
                                   : warp.slot<std::uint32_t>(inst->a)[lane];
}

const Inst* do_frame_address(Warp& warp, const Inst* inst) {
    for_active(warp.mask, [&](std::uint32_t lane) {
        put(warp, inst, lane, warp.frame[lane] + static_cast<std::uint64_t>(inst->imm));
    });
    return inst + 1;
}

const Inst* do_param_address(Warp& warp, const Inst* inst) {
    for_active(warp.mask, [&](std::uint32_t lane) {
        put(warp, inst, lane, kParameterWindow + static_cast<std::uint64_t>(inst->imm));
    });
    return inst + 1;
}

const Inst* do_stack_allocate(Warp& warp, const Inst* inst) {
    for_active(warp.mask, [&](std::uint32_t lane) {
        const std::uint64_t align = std::max<std::uint64_t>(inst->aux, 8);
        const std::uint64_t size = (get(warp, inst, lane) + 15) / 16 * 16;
        const std::uint64_t end =
            warp.frame[lane] + static_cast<std::uint64_t>(inst->imm) + warp.frame_extra[lane];
        const std::uint64_t begin = (end + align - 1) / align * align;
        if (size > warp.local_stride || begin + size + 64 > warp.local_stride) {
            raise_fault(warp, inst, LaunchError::kHardwareStackError, lane, begin + size,
                        "alloca beyond the thread's stack (raise the stack size limit)");
        }
        warp.frame_extra[lane] += static_cast<std::uint32_t>(begin - end + size);
        put(warp, inst, lane, begin);
    });
    return inst + 1;
}

const Inst* do_stack_save(Warp& warp, const Inst* inst) {
    for_active(warp.mask,
               [&](std::uint32_t lane) { put(warp, inst, lane, warp.frame_extra[lane]); });
    return inst + 1;
}

const Inst* do_stack_restore(Warp& warp, const Inst* inst) {
    for_active(warp.mask, [&](std::uint32_t lane) {
        warp.frame_extra[lane] =
            std::min(static_cast<std::uint32_t>(get(warp, inst, lane)), warp.frame_extra[lane]);
    });
    return inst + 1;
}

const Inst* do_trap(Warp& warp, const Inst* inst) {
    raise_fault(warp, inst, static_cast<LaunchError>(inst->aux),
                static_cast<std::uint32_t>(__builtin_ctz(warp.mask)), 0, "trap instruction");
}

const Inst* do_sleep(Warp& warp, const Inst* inst) {
    warp.thread->polls += 64;  // whoever sleeps waits for somebody
    warp.push(inst + 1, warp.mask);
    warp.thread->yield = true;
    return stop_instruction();
}

/// Nanoseconds since 1970: never backwards in a process, and a program that is moved finds them go
/// on, as nearly as the two hosts' clocks agree.
std::uint64_t device_time_ns() {
    using namespace std::chrono;
    static const auto to_wall = duration_cast<nanoseconds>(system_clock::now().time_since_epoch() -
                                                           steady_clock::now().time_since_epoch());
    const auto now = duration_cast<nanoseconds>(steady_clock::now().time_since_epoch());
    return static_cast<std::uint64_t>((now + to_wall).count());
}

const Inst* do_read_clock(Warp& warp, const Inst* inst) {
    const std::uint64_t ns = device_time_ns();
    std::uint64_t value = ns;
    if (inst->aux >= 2 && inst->aux <= 4) {
        value = inst->aux == 4 ? value >> 32 : value;
    } else {
        constexpr std::uint64_t kNsPerMs = 1'000'000;  // Kilohertz are cycles per millisecond.
        value = ns / kNsPerMs * clock_khz(warp) + ns % kNsPerMs * clock_khz(warp) / kNsPerMs;
        value = inst->aux == 5 ? value >> 32 : value;
    }
    for_active(warp.mask, [&](std::uint32_t lane) { put(warp, inst, lane, value); });
    return inst + 1;
}

const Inst* do_nothing(Warp&, const Inst* inst) { return inst + 1; }

}  // namespace

Handler branch() { return &do_branch; }
Handler branch_if(bool negated) { return negated ? &do_branch_if<true> : &do_branch_if<false>; }
Handler branch_indexed() { return &do_branch_indexed; }
Handler leave() { return &do_leave; }
Handler call() { return &do_call; }
Handler function_return() { return &do_return; }
Handler call_results() { return &do_call_results; }
Handler frame_address() { return &do_frame_address; }
Handler param_address() { return &do_param_address; }
Handler stack_allocate() { return &do_stack_allocate; }
Handler stack_save() { return &do_stack_save; }
Handler stack_restore() { return &do_stack_restore; }
Handler trap() { return &do_trap; }
Handler sleep_hint() { return &do_sleep; }
Handler read_clock() { return &do_read_clock; }
Handler nothing() { return &do_nothing; }

}  // namespace gantry::softgpu::exec
