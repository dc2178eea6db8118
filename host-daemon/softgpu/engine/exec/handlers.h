// Handlers that are not built per CPU level, by family. Each comment tells the use of Inst fields
// beyond dst/a/b/c.
#pragma once

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

// control.cc
Handler branch();                 ///< target
Handler branch_if(bool negated);  ///< target; guard: predicate slot
Handler branch_indexed();         ///< table: BranchTable; a: u32 index
Handler leave();                  ///< ends the lanes (exit, or ret of a kernel)
Handler call();                   ///< table: CallSite; target: see call_target in `e`
Handler call_builtin();           ///< table: CallSite
Handler function_return();
Handler call_results();    ///< table: CallSite; copies results after a call
Handler frame_address();   ///< dst (64 or 32 by flags) = frame + imm
Handler stack_allocate();  ///< dst, a: size; aux: align; flags: 1 if dst is 64 bits
Handler stack_save();      ///< dst; flags as above
Handler stack_restore();   ///< a; flags as above
Handler trap();            ///< aux: LaunchError
Handler sleep_hint();
/// dst; aux: 0 clock, 1 clock64, 2 globaltimer, 3 its low, 4 high half, 5 clock_hi; flags: wide
Handler read_clock();
Handler param_address();  ///< dst = address of the parameter buffer + imm; flags: wide
Handler nothing();

// barrier.cc
/// a: id, b: count (0 in constant slot: all); aux: 0 sync, 1 arrive, 2..4 red popc/and/or; c:
/// predicate, flags: negated; dst
Handler barrier();
Handler fence();

// warp.cc; members: u32 slot of the member mask in `d`
Handler warp_sync();
Handler shuffle(int mode);  ///< 0 up, 1 down, 2 bfly, 3 idx; dst, a, b, c; e: predicate slot or ~0
Handler vote(int mode);     ///< 0 all, 1 any, 2 uni, 3 ballot; a: predicate, flags: negated
Handler match(bool all, bool wide);  ///< dst, a; e: predicate slot or ~0
/// redux: dst, a; aux: 0 add 1 min 2 max 3 and 4 or 5 xor 6 fmin 7 fmax 8 fmin.nan 9 fmax.nan;
/// flags: 1 signed, 2 abs
Handler reduce();
Handler elect();  ///< dst, e: predicate
Handler active_mask();
/// dst = a op b; aux: 0 and 1 or 2 xor 3 not a 4 mov; flags: 1 a negated, 2 b negated, 4 dst also
/// to e
Handler predicate_logic();

// misc.cc
Handler add_carry();      ///< aux: AddCarry bits; 32 or 64 by flags bit 0
Handler test_property();  ///< aux: property; flags: 1 f64
Handler dot2();           ///< dp2a: aux bit 0 a signed, bit 1 b signed, bit 2 hi
Handler bit_mask();       ///< bmsk: flags 1 wrap
Handler extend_sign();    ///< szext: flags 1 wrap, 2 signed
/// dst predicate, a: u64; aux: 0 global 1 shared 2 local 3 const 4 param
Handler is_space();
Handler to_generic();  ///< cvta: dst, a 64; aux: 1 shared 2 local; flags 1: back

Handler select_predicate();  ///< selp on predicates

}  // namespace gantry::softgpu::exec
