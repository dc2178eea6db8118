// PTX of our own for gantry-ptx-bench: the shapes that the speed promise names.
#pragma once

namespace gantry::softgpu {

inline constexpr const char* kBenchKernels = R"ptx(
.version 9.0
.target sm_75
.address_size 64

// y[i] = a * x[i] + y[i], grid stride
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mov.u32 %r6, %nctaid.x;
    mul.lo.s32 %r6, %r6, %r3;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
LOOP:
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f3, %f1, %f2, %f3;
    st.global.f32 [%rd5], %f3;
    add.s32 %r5, %r5, %r6;
    setp.lt.u32 %p1, %r5, %r1;
    @%p1 bra LOOP;
DONE:
    ret;
}

// c = a * b, n x n, 16 x 16 tiles in shared memory
.visible .entry sgemm(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)
{
    .reg .pred %p<2>;
    .reg .b32 %r<32>;
    .reg .f32 %f<68>;
    .reg .b64 %rd<16>;
    .shared .align 4 .b8 tile_a[1024];
    .shared .align 4 .b8 tile_b[1024];
    ld.param.u64 %rd1, [pa];
    ld.param.u64 %rd2, [pb];
    ld.param.u64 %rd3, [pc];
    ld.param.u32 %r1, [pn];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %tid.y;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ctaid.y;
    shl.b32 %r6, %r5, 4;
    add.s32 %r6, %r6, %r3;
    shl.b32 %r7, %r4, 4;
    add.s32 %r7, %r7, %r2;
    mad.lo.s32 %r8, %r6, %r1, %r2;
    mul.wide.s32 %rd4, %r8, 4;
    add.s64 %rd4, %rd1, %rd4;
    mad.lo.s32 %r9, %r3, %r1, %r7;
    mul.wide.s32 %rd5, %r9, 4;
    add.s64 %rd5, %rd2, %rd5;
    shl.b32 %r10, %r3, 6;
    mov.u32 %r11, tile_a;
    add.s32 %r12, %r11, %r10;
    shl.b32 %r13, %r2, 2;
    add.s32 %r14, %r12, %r13;
    mov.u32 %r15, tile_b;
    add.s32 %r16, %r15, %r13;
    add.s32 %r17, %r16, %r10;
    shl.b32 %r18, %r1, 4;
    mul.wide.s32 %rd6, %r18, 4;
    mov.f32 %f1, 0f00000000;
    mov.u32 %r19, 0;
TILE:
    ld.global.f32 %f2, [%rd4];
    st.shared.f32 [%r14], %f2;
    ld.global.f32 %f3, [%rd5];
    st.shared.f32 [%r17], %f3;
    bar.sync 0;
    ld.shared.f32 %f4, [%r12];
    ld.shared.f32 %f5, [%r16];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+4];
    ld.shared.f32 %f5, [%r16+64];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+8];
    ld.shared.f32 %f5, [%r16+128];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+12];
    ld.shared.f32 %f5, [%r16+192];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+16];
    ld.shared.f32 %f5, [%r16+256];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+20];
    ld.shared.f32 %f5, [%r16+320];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+24];
    ld.shared.f32 %f5, [%r16+384];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+28];
    ld.shared.f32 %f5, [%r16+448];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+32];
    ld.shared.f32 %f5, [%r16+512];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+36];
    ld.shared.f32 %f5, [%r16+576];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+40];
    ld.shared.f32 %f5, [%r16+640];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+44];
    ld.shared.f32 %f5, [%r16+704];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+48];
    ld.shared.f32 %f5, [%r16+768];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+52];
    ld.shared.f32 %f5, [%r16+832];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+56];
    ld.shared.f32 %f5, [%r16+896];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    ld.shared.f32 %f4, [%r12+60];
    ld.shared.f32 %f5, [%r16+960];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    bar.sync 0;
    add.s64 %rd4, %rd4, 64;
    add.s64 %rd5, %rd5, %rd6;
    add.s32 %r19, %r19, 16;
    setp.lt.s32 %p1, %r19, %r1;
    @%p1 bra TILE;
    mad.lo.s32 %r20, %r6, %r1, %r7;
    mul.wide.s32 %rd7, %r20, 4;
    add.s64 %rd8, %rd3, %rd7;
    st.global.f32 [%rd8], %f1;
    ret;
}

// one sum per block: grid stride, shuffles, shared memory
.visible .entry reduce(.param .u64 pin, .param .u64 pout, .param .u32 pn)
{
    .reg .pred %p<4>;
    .reg .b32 %r<24>;
    .reg .f32 %f<8>;
    .reg .b64 %rd<8>;
    .shared .align 4 .b8 partial[128];
    ld.param.u64 %rd1, [pin];
    ld.param.u64 %rd2, [pout];
    ld.param.u32 %r1, [pn];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r5, %r3, %r4, %r2;
    mov.u32 %r6, %nctaid.x;
    mul.lo.s32 %r6, %r6, %r4;
    mov.f32 %f1, 0f00000000;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra SUMMED;
NEXT:
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f2, [%rd4];
    add.f32 %f1, %f1, %f2;
    add.s32 %r5, %r5, %r6;
    setp.lt.u32 %p1, %r5, %r1;
    @%p1 bra NEXT;
SUMMED:
    mov.b32 %r7, %f1;
    shfl.sync.down.b32 %r8|%p2, %r7, 16, 31, -1;
    mov.b32 %f3, %r8;
    add.f32 %f1, %f1, %f3;
    mov.b32 %r7, %f1;
    shfl.sync.down.b32 %r8|%p2, %r7, 8, 31, -1;
    mov.b32 %f3, %r8;
    add.f32 %f1, %f1, %f3;
    mov.b32 %r7, %f1;
    shfl.sync.down.b32 %r8|%p2, %r7, 4, 31, -1;
    mov.b32 %f3, %r8;
    add.f32 %f1, %f1, %f3;
    mov.b32 %r7, %f1;
    shfl.sync.down.b32 %r8|%p2, %r7, 2, 31, -1;
    mov.b32 %f3, %r8;
    add.f32 %f1, %f1, %f3;
    mov.b32 %r7, %f1;
    shfl.sync.down.b32 %r8|%p2, %r7, 1, 31, -1;
    mov.b32 %f3, %r8;
    add.f32 %f1, %f1, %f3;
    and.b32 %r9, %r2, 31;
    shr.u32 %r10, %r2, 5;
    setp.ne.u32 %p1, %r9, 0;
    @%p1 bra STORED;
    shl.b32 %r11, %r10, 2;
    mov.u32 %r12, partial;
    add.s32 %r12, %r12, %r11;
    st.shared.f32 [%r12], %f1;
STORED:
    bar.sync 0;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra FINISHED;
    mov.f32 %f1, 0f00000000;
    mov.u32 %r13, partial;
    shr.u32 %r14, %r4, 5;
ADD:
    ld.shared.f32 %f2, [%r13];
    add.f32 %f1, %f1, %f2;
    add.s32 %r13, %r13, 4;
    add.s32 %r14, %r14, -1;
    setp.ne.s32 %p1, %r14, 0;
    @%p1 bra ADD;
    mul.wide.u32 %rd5, %r3, 4;
    add.s64 %rd5, %rd2, %rd5;
    st.global.f32 [%rd5], %f1;
FINISHED:
    ret;
}

// accelerations of n bodies (x, y, z, mass), tiles of 256 in shared memory
.visible .entry nbody(.param .u64 pin, .param .u64 pout, .param .u32 pn)
{
    .reg .pred %p<3>;
    .reg .b32 %r<16>;
    .reg .f32 %f<40>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 tile[4096];
    ld.param.u64 %rd1, [pin];
    ld.param.u64 %rd2, [pout];
    ld.param.u32 %r1, [pn];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r5, %r3, %r4, %r2;
    mul.wide.u32 %rd3, %r5, 16;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];
    mov.f32 %f5, 0f00000000;
    mov.f32 %f6, 0f00000000;
    mov.f32 %f7, 0f00000000;
    mul.wide.u32 %rd6, %r2, 16;
    add.s64 %rd6, %rd1, %rd6;
    shl.b32 %r6, %r2, 4;
    mov.u32 %r7, tile;
    add.s32 %r8, %r7, %r6;
    mov.u32 %r9, 0;
OUTER:
    ld.global.v4.f32 {%f8, %f9, %f10, %f11}, [%rd6];
    st.shared.v4.f32 [%r8], {%f8, %f9, %f10, %f11};
    bar.sync 0;
    mov.u32 %r10, tile;
    mov.u32 %r11, 0;
INNER:
    ld.shared.v4.f32 {%f12, %f13, %f14, %f15}, [%r10];
    sub.f32 %f16, %f12, %f1;
    sub.f32 %f17, %f13, %f2;
    sub.f32 %f18, %f14, %f3;
    fma.rn.f32 %f19, %f16, %f16, 0f3A83126F;
    fma.rn.f32 %f19, %f17, %f17, %f19;
    fma.rn.f32 %f19, %f18, %f18, %f19;
    rsqrt.approx.f32 %f20, %f19;
    mul.f32 %f21, %f20, %f20;
    mul.f32 %f21, %f21, %f20;
    mul.f32 %f21, %f21, %f15;
    fma.rn.f32 %f5, %f16, %f21, %f5;
    fma.rn.f32 %f6, %f17, %f21, %f6;
    fma.rn.f32 %f7, %f18, %f21, %f7;
    add.s32 %r10, %r10, 16;
    add.s32 %r11, %r11, 1;
    setp.lt.u32 %p1, %r11, 256;
    @%p1 bra INNER;
    bar.sync 0;
    add.s64 %rd6, %rd6, 4096;
    add.s32 %r9, %r9, 256;
    setp.lt.u32 %p2, %r9, %r1;
    @%p2 bra OUTER;
    mov.f32 %f22, 0f00000000;
    st.global.v4.f32 [%rd5], {%f5, %f6, %f7, %f22};
    ret;
}

.visible .entry mandelbrot(.param .u64 pout, .param .u32 pw, .param .u32 pmax)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .f32 %f<16>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [pout];
    ld.param.u32 %r1, [pw];
    ld.param.u32 %r2, [pmax];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    mov.u32 %r3, %ctaid.y;
    mov.u32 %r4, %ntid.y;
    mov.u32 %r5, %tid.y;
    mad.lo.s32 %r7, %r3, %r4, %r5;
    cvt.rn.f32.u32 %f1, %r6;
    cvt.rn.f32.u32 %f2, %r7;
    cvt.rn.f32.u32 %f3, %r1;
    div.rn.f32 %f1, %f1, %f3;
    div.rn.f32 %f2, %f2, %f3;
    fma.rn.f32 %f1, %f1, 0f40400000, 0fC0000000;
    fma.rn.f32 %f2, %f2, 0f40000000, 0fBF800000;
    mov.f32 %f4, 0f00000000;
    mov.f32 %f5, 0f00000000;
    mov.u32 %r8, 0;
STEP:
    mul.f32 %f6, %f4, %f4;
    mul.f32 %f7, %f5, %f5;
    add.f32 %f8, %f6, %f7;
    setp.gt.f32 %p1, %f8, 0f40800000;
    @%p1 bra OUT;
    mul.f32 %f9, %f4, %f5;
    add.f32 %f9, %f9, %f9;
    add.f32 %f5, %f9, %f2;
    sub.f32 %f6, %f6, %f7;
    add.f32 %f4, %f6, %f1;
    add.s32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, %r2;
    @%p2 bra STEP;
OUT:
    mad.lo.s32 %r9, %r7, %r1, %r6;
    mul.wide.u32 %rd2, %r9, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r8;
    ret;
}
)ptx";

}  // namespace gantry::softgpu
