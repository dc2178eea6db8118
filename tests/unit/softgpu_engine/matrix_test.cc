// Products of matrices: every element type of mma and wmma, against sums of small whole numbers,
// which are exact in each of them. Where mma's elements lie is written down here once more, by
// PTX's description of the fragments.
#include <algorithm>

#include "host-daemon/softgpu/engine/numbers.h"
#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

u32 bits_of(const std::string& type) {
    if (type == "f64") {
        return 64;
    }
    if (type == "f16" || type == "bf16") {
        return 16;
    }
    if (type == "s8" || type == "u8" || type == "e4m3" || type == "e5m2") {
        return 8;
    }
    return type == "s4" || type == "u4" ? 4 : 32;
}

bool is_unsigned(const std::string& type) { return type[0] == 'u'; }

u64 encode(const std::string& type, int value) {
    const double number = value;
    if (type == "f64") {
        return f64(number);
    }
    if (type == "f32" || type == "tf32") {
        return f32(static_cast<float>(value));
    }
    if (type == "f16") {
        return half_from_double(number);
    }
    if (type == "bf16") {
        return bf16_from_double(number);
    }
    if (type == "e4m3" || type == "e5m2") {
        return small_from_double(number, type == "e4m3" ? kE4m3 : kE5m2, true);
    }
    return static_cast<u64>(value) & ((u64{1} << bits_of(type)) - 1);
}

struct Product {
    u32 m, n, k;
    std::string d, a, b, c;
    std::string rest;  ///< ".satfinite" or nothing
    int base = 0;      ///< of c
};

int a_at(const Product& product, u32 row, u32 column) {
    const int value = static_cast<int>((row * 5 + column * 3) % 7) - 3;
    return is_unsigned(product.a) ? value + 3 : value;
}
int b_at(const Product& product, u32 row, u32 column) {
    const int value = static_cast<int>((row * 2 + column * 11) % 5) - 2;
    return is_unsigned(product.b) ? value + 2 : value;
}
int c_at(const Product& product, u32 row, u32 column) {
    return product.base + static_cast<int>(row) - 2 * static_cast<int>(column);
}

u64 expected(const Product& product, u32 row, u32 column) {
    std::int64_t sum = c_at(product, row, column);
    for (u32 k = 0; k < product.k; ++k) {
        sum += a_at(product, row, k) * b_at(product, k, column);
    }
    if (!product.rest.empty()) {
        sum = std::min<std::int64_t>(sum, INT32_MAX);
    }
    return encode(product.d, static_cast<int>(sum));
}

/// A fragment in memory: register by register, each of 32 lanes.
class Fragment {
public:
    Fragment(u32 elements, u32 bits)
        : bits_(bits),
          word_bytes_(bits == 64 ? 8 : 4),
          registers_(std::max(1U, elements / 32 * bits / (word_bytes_ * 8))),
          bytes_(std::size_t{registers_} * 32 * word_bytes_) {}

    void put(u32 lane, u32 index, u64 value) {
        const u32 per = word_bytes_ * 8 / bits_;
        u64 word = this->word(lane, index / per);
        word |= value << (index % per * bits_);
        std::memcpy(at(lane, index / per), &word, word_bytes_);
    }
    [[nodiscard]] u64 take(u32 lane, u32 index) {
        const u32 per = word_bytes_ * 8 / bits_;
        const u64 word = this->word(lane, index / per) >> (index % per * bits_);
        return bits_ == 64 ? word : word & ((u64{1} << bits_) - 1);
    }
    [[nodiscard]] u32 registers() const { return registers_; }
    [[nodiscard]] std::vector<std::uint8_t>& bytes() { return bytes_; }

private:
    std::uint8_t* at(u32 lane, u32 reg) {
        return bytes_.data() + (std::size_t{reg} * 32 + lane) * word_bytes_;
    }
    u64 word(u32 lane, u32 reg) {
        u64 out = 0;
        std::memcpy(&out, at(lane, reg), word_bytes_);
        return out;
    }

    u32 bits_;
    u32 word_bytes_;
    u32 registers_;
    std::vector<std::uint8_t> bytes_;
};

/// Calls `visit(lane, index, row, column)` for each element of mma's A, B (rows: k), C and D.
template <typename Visit>
void for_a(const Product& product, Visit visit) {
    const u32 per = std::max(1U, 32 / bits_of(product.a));
    for (u32 row = 0; row < product.m; ++row) {
        for (u32 column = 0; column < product.k; ++column) {
            const u32 reg = column / (4 * per) * (product.m / 8) + row / 8;
            visit(row % 8 * 4 + column / per % 4, reg * per + column % per, row, column);
        }
    }
}
template <typename Visit>
void for_b(const Product& product, Visit visit) {
    const u32 per = std::max(1U, 32 / bits_of(product.b));
    for (u32 row = 0; row < product.k; ++row) {
        for (u32 column = 0; column < product.n; ++column) {
            visit(column * 4 + row / per % 4, row / (4 * per) * per + row % per, row, column);
        }
    }
}
template <typename Visit>
void for_sums(const Product& product, Visit visit) {
    for (u32 row = 0; row < product.m; ++row) {
        for (u32 column = 0; column < product.n; ++column) {
            visit(row % 8 * 4 + column / 2, row / 8 * 2 + column % 2, row, column);
        }
    }
}

std::string registers(const std::string& prefix, u32 count) {
    std::string out = "{";
    for (u32 i = 0; i < count; ++i) {
        out += (i == 0 ? "%" : ", %") + prefix + std::to_string(i);
    }
    return out + "}";
}

/// Text that moves a fragment's registers between memory at %rd<base> and the registers.
std::string moves(bool store, const std::string& prefix, u32 count, bool wide, u32 base) {
    std::string out;
    const std::string type = wide ? "f64" : "b32";
    for (u32 i = 0; i < count; ++i) {
        const std::string where =
            "[%rd" + std::to_string(base) + "+" + std::to_string(i * 32 * (wide ? 8 : 4)) + "]";
        const std::string reg = "%" + prefix + std::to_string(i);
        out += store ? "st.global." + type + " " + where + ", " + reg + ";\n"
                     : "ld.global." + type + " " + reg + ", " + where + ";\n";
    }
    return out;
}

std::string shape_of(const Product& product) {
    return "m" + std::to_string(product.m) + "n" + std::to_string(product.n) + "k" +
           std::to_string(product.k);
}

void check_mma(const Product& product) {
    const bool wide = product.a == "f64";
    Fragment a(product.m * product.k, bits_of(product.a));
    Fragment b(product.k * product.n, bits_of(product.b));
    Fragment c(product.m * product.n, bits_of(product.c));
    Fragment d(product.m * product.n, bits_of(product.d));
    for_a(product, [&](u32 lane, u32 index, u32 row, u32 column) {
        a.put(lane, index, encode(product.a, a_at(product, row, column)));
    });
    for_b(product, [&](u32 lane, u32 index, u32 row, u32 column) {
        b.put(lane, index, encode(product.b, b_at(product, row, column)));
    });
    for_sums(product, [&](u32 lane, u32 index, u32 row, u32 column) {
        c.put(lane, index, encode(product.c, c_at(product, row, column)));
    });
    const std::string kind = wide ? ".f64" : ".b32";
    std::string text =
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {\n"
        ".reg .b32 %t; .reg .b64 %rd<9>; .reg " +
        kind +
        " %a<16>, %b<16>, %c<16>, %d<16>;\n"
        "mov.u32 %t, %tid.x; mul.wide.u32 %rd5, %t, " +
        (wide ? "8" : "4") + ";\n";
    for (const char* name : {"pa", "pb", "pc", "pd"}) {
        const std::string reg = "%rd" + std::to_string(name[1] - 'a' + 1);
        text +=
            "ld.param.u64 " + reg + ", [" + name + "]; add.u64 " + reg + ", " + reg + ", %rd5;\n";
    }
    text += moves(false, "a", a.registers(), wide, 1) + moves(false, "b", b.registers(), wide, 2) +
            moves(false, "c", c.registers(), wide, 3);
    const auto operand = [](const std::string& prefix, const Fragment& fragment) {
        return registers(prefix, fragment.registers());
    };
    text += "mma.sync.aligned." + shape_of(product) + ".row.col" + product.rest + "." + product.d +
            "." + product.a + "." + product.b + "." + product.c + " " + operand("d", d) + ", " +
            operand("a", a) + ", " + operand("b", b) + ", " + operand("c", c) + ";\n" +
            moves(true, "d", d.registers(), wide, 4) + "ret; }";
    const Loaded loaded = load_or_die(text);
    Params params;
    params.pointer(a.bytes()).pointer(b.bytes()).pointer(c.bytes()).pointer(d.bytes());
    const LaunchStatus status = launch(loaded, "k", {}, {32, 1, 1}, params);
    ASSERT_TRUE(status.ok()) << status.text;
    for_sums(product, [&](u32 lane, u32 index, u32 row, u32 column) {
        EXPECT_EQ(d.take(lane, index), expected(product, row, column))
            << text << " at " << row << ", " << column;
    });
}

TEST(SoftgpuMatrix, MmaOfEveryType) {
    for (const Product& product :
         {Product{16, 8, 16, "f32", "f16", "f16", "f32", "", 0},
          Product{16, 8, 8, "f16", "f16", "f16", "f16", "", 1},
          Product{16, 8, 16, "f32", "bf16", "bf16", "f32", "", 0},
          Product{16, 8, 8, "f32", "tf32", "tf32", "f32", "", 7},
          Product{16, 8, 4, "f32", "tf32", "tf32", "f32", "", 7},
          Product{8, 8, 4, "f64", "f64", "f64", "f64", "", 1},
          Product{16, 8, 16, "f64", "f64", "f64", "f64", "", 1},
          Product{16, 8, 32, "f32", "e4m3", "e5m2", "f32", "", 0},
          Product{16, 8, 32, "s32", "s8", "u8", "s32", "", -9},
          Product{8, 8, 16, "s32", "u8", "s8", "s32", "", 3},
          Product{16, 8, 64, "s32", "s4", "u4", "s32", "", 3},
          Product{8, 8, 32, "s32", "u4", "s4", "s32", "", 3},
          Product{16, 8, 16, "s32", "s8", "s8", "s32", ".satfinite", INT32_MAX - 20}}) {
        check_mma(product);
    }
}

/// The same through wmma, whose fragments only its own loads and stores know. Lines in memory
/// are `gap` elements longer than the matrix.
template <typename A, typename D>
void check_wmma(const Product& product, bool a_rows, bool b_rows, bool d_rows, u32 gap,
                const std::string& a_registers, const std::string& b_registers,
                const std::string& d_registers) {
    struct Plane {
        u32 rows, columns;
        bool by_rows;
        u32 gap;
        [[nodiscard]] u32 stride() const { return (by_rows ? columns : rows) + gap; }
        [[nodiscard]] u32 at(u32 row, u32 column) const {
            return by_rows ? row * stride() + column : column * stride() + row;
        }
        [[nodiscard]] std::size_t size() const {
            return std::size_t{stride()} * (by_rows ? rows : columns);
        }
    };
    const Plane a_plane{product.m, product.k, a_rows, gap};
    const Plane b_plane{product.k, product.n, b_rows, gap};
    const Plane d_plane{product.m, product.n, d_rows, gap};
    std::vector<A> a(a_plane.size());
    std::vector<A> b(b_plane.size());
    std::vector<D> c(d_plane.size());
    std::vector<D> d(d_plane.size(), D{77});
    for (u32 k = 0; k < product.k; ++k) {
        for (u32 row = 0; row < product.m; ++row) {
            a[a_plane.at(row, k)] = static_cast<A>(encode(product.a, a_at(product, row, k)));
        }
        for (u32 column = 0; column < product.n; ++column) {
            b[b_plane.at(k, column)] = static_cast<A>(encode(product.b, b_at(product, k, column)));
        }
    }
    for (u32 row = 0; row < product.m; ++row) {
        for (u32 column = 0; column < product.n; ++column) {
            c[d_plane.at(row, column)] =
                static_cast<D>(encode(product.c, c_at(product, row, column)));
        }
    }
    const auto layout = [](bool rows) { return std::string(rows ? ".row." : ".col."); };
    const std::string shape = shape_of(product);
    const std::string middle = "sync.aligned";
    const std::string kind = product.a == "f64" ? ".f64" : ".b32";
    const bool all_types = product.a != "f16";
    const std::string types = all_types
                                  ? product.d + "." + product.a + "." + product.b + "." + product.c
                                  : product.d + "." + product.c;
    const std::string text =
        ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {\n"
        ".reg .b32 %s<3>; .reg .b64 %rd<9>; .reg " +
        kind +
        " %a<16>, %b<16>, %c<16>, %d<16>;\n"
        "ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb];\n"
        "ld.param.u64 %rd3, [pc]; ld.param.u64 %rd4, [pd];\n"
        "mov.u32 %s0, " +
        std::to_string(a_plane.stride()) + "; mov.u32 %s1, " + std::to_string(b_plane.stride()) +
        "; mov.u32 %s2, " + std::to_string(d_plane.stride()) + ";\nwmma.load.a." + middle +
        layout(a_rows) + shape + ".global." + product.a + " " + a_registers +
        ", [%rd1], %s0;\nwmma.load.b." + middle + layout(b_rows) + shape + ".global." + product.b +
        " " + b_registers + ", [%rd2], %s1;\nwmma.load.c." + middle + layout(d_rows) + shape +
        ".global." + product.c + " " + d_registers + ", [%rd3], %s2;\nwmma.mma." + middle +
        layout(a_rows).substr(0, 4) + layout(b_rows) + shape + "." + types + " " + d_registers +
        ", " + a_registers + ", " + b_registers + ", " + d_registers + ";\nwmma.store.d." + middle +
        layout(d_rows) + shape + ".global." + product.d + " [%rd4], " + d_registers +
        ", %s2;\nret; }";
    const Loaded loaded = load_or_die(text);
    const LaunchStatus status =
        launch(loaded, "k", {}, {32, 1, 1}, Params().pointer(a).pointer(b).pointer(c).pointer(d));
    ASSERT_TRUE(status.ok()) << status.text;
    std::vector<D> wanted(d.size(), D{77});  // what lies between the lines stays
    for (u32 row = 0; row < product.m; ++row) {
        for (u32 column = 0; column < product.n; ++column) {
            wanted[d_plane.at(row, column)] = static_cast<D>(expected(product, row, column));
        }
    }
    EXPECT_EQ(d, wanted) << text;
}

TEST(SoftgpuMatrix, WmmaOfEveryTypeAndLayout) {
    for (const bool a_rows : {true, false}) {
        for (const bool b_rows : {true, false}) {
            const bool d_rows = a_rows != b_rows;
            const auto check = [&]<typename A, typename D>(const Product& product, A, D, u32 a,
                                                           u32 b, u32 d) {
                check_wmma<A, D>(product, a_rows, b_rows, d_rows, 8, registers("a", a),
                                 registers("b", b), registers("c", d));
            };
            check({16, 16, 16, "f32", "f16", "f16", "f32", "", 0}, std::uint16_t{}, u32{}, 8, 8, 8);
            check({8, 32, 16, "f16", "f16", "f16", "f16", "", 0}, std::uint16_t{}, std::uint16_t{},
                  8, 8, 4);
            check({32, 8, 16, "f32", "bf16", "bf16", "f32", "", 2}, std::uint16_t{}, u32{}, 8, 2,
                  8);
            check({16, 16, 8, "f32", "tf32", "tf32", "f32", "", 2}, u32{}, u32{}, 4, 4, 8);
            check({16, 16, 16, "s32", "u8", "s8", "s32", "", -5}, std::uint8_t{}, u32{}, 2, 2, 8);
        }
    }
    check_wmma<u64, u64>({8, 8, 4, "f64", "f64", "f64", "f64", "", 4}, true, false, true, 2,
                         "{%a0}", "{%b0}", "{%c0, %c1}");
}

TEST(SoftgpuMatrix, ShapesAndTypesThatDoNotExistAreRefused) {
    for (const char* instruction :
         {"wmma.mma.sync.aligned.row.col.m16n16k4096.f32.f32 {%a0, %a1, %a2, %a3, %a4, %a5, %a6, "
          "%a7}, {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, {%a0, %a1, %a2, %a3, %a4, %a5, %a6, "
          "%a7}, {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7};",
          "mma.sync.aligned.m8n8k16.row.col.f32.s8.e4m3.f32 {%a0, %a1}, {%a2}, {%a3}, {%a4, %a5};",
          "mma.sync.aligned.m8n8k16.row.col.f32.s8.s8.f32 {%a0, %a1}, {%a2}, {%a3}, {%a4, %a5};"}) {
        const auto loaded = load(
            {std::string(".visible .entry k() { .reg .b32 %a<9>;\n") + instruction + "\nret; }"});
        if (!loaded.ok()) {
            continue;  // refused when it was linked
        }
        const LaunchStatus status = launch(loaded.value(), "k", {}, {32, 1, 1}, Params());
        EXPECT_FALSE(status.ok()) << instruction;
    }
}

}  // namespace
}  // namespace gantry::softgpu::test
