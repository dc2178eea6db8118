// The forms of `gantry profile`, from readings made for the test: what is shown, and that a guest's
// words and numbers cannot break out of it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "migration/cli/profile_forms.h"

namespace gantry::cli {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

control::Operation operation(std::uint32_t id, std::uint32_t parent, const std::string& name,
                             std::uint64_t guest_ns, std::uint64_t gpu_ns) {
    control::Operation out;
    out.set_id(id);
    out.set_parent(parent);
    out.set_thread(3);
    out.set_name(name);
    out.set_count(2);
    out.set_guest_ns(guest_ns);
    out.set_gpu_ns(gpu_ns);
    out.set_wall_ns(guest_ns + gpu_ns);
    return out;
}

/// A step of 1 ms by itself, of 4 ms in "infer" and of 5 ms in "train", which a move hit; "train"
/// came before "infer" did.
control::ProfileReply reading() {
    control::ProfileReply out;
    out.set_session_id("id-1");
    out.set_vm_name("g1");
    control::ProgramProfile& program = *out.add_programs();
    program.set_guest_pid(77);
    program.set_process_name("python3");
    control::Profile& profile = *program.mutable_profile();
    profile.set_level(2);
    profile.set_stamp_ns(50);
    profile.set_knows_overlap(true);
    *profile.add_operations() = operation(1, 0, "(outside)", 2 * kMs, 0);
    *profile.add_operations() = operation(2, 1, "step", kMs, 0);
    *profile.add_operations() = operation(4, 2, "train", kMs, kMs);
    *profile.add_operations() = operation(9, 2, "infer", 0, 4 * kMs);
    control::Operation& train = *profile.mutable_operations(2);
    train.set_pause_ns(3 * kMs);
    train.set_wall_ns(5 * kMs);
    train.set_pauses(1);
    train.set_own_ns(1000);
    const auto add_range = [&](std::uint32_t id, std::uint64_t begin, std::uint64_t end,
                               bool is_pause) {
        control::OperationRange& range = *profile.add_ranges();
        range.set_operation(id);
        range.set_begin_ns(begin);
        range.set_end_ns(end);
        range.set_is_pause(is_pause);
    };
    add_range(4, 7 * kMs, 10 * kMs, true);
    add_range(4, 6 * kMs, 11 * kMs, false);
    add_range(9, 11 * kMs, 15 * kMs, false);
    add_range(2, 5 * kMs, 15 * kMs, false);
    add_range(1000, 5 * kMs, 15 * kMs, false);  // of an operation that is not told
    return out;
}

std::size_t count_of(const std::string& text, const std::string& word) {
    std::size_t count = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        ++count;
    }
    return count;
}

TEST(Profile, AnOperationStandsUnderWhatEnclosesIt) {
    const auto reply = reading();
    const auto nodes = operation_nodes(reply.programs(0).profile());
    ASSERT_EQ(nodes.size(), 4U);
    EXPECT_EQ(nodes[0].whole_ns, 12 * kMs);
    EXPECT_EQ(nodes[1].whole_ns, 10 * kMs);
    EXPECT_EQ(nodes[3].depth, 2U);
    EXPECT_EQ(in_depth(nodes), (std::vector<std::size_t>{0, 1, 2, 3}));
    const std::string text = profile_text(reply);
    EXPECT_NE(text.find("Program 77 python3: level 2\n"), std::string::npos) << text;
    // Its own 5 ms: 1 of the program, 1 of the GPU, 3 of the move.
    EXPECT_TRUE(std::regex_search(
        text, std::regex(R"( 3 +2 +5\.000 +1\.000 +0\.000 +0\.000 +0\.000 +1\.000 +0\.000 +3\.000 )"
                         R"( +train \[1 moves\]\n)")))
        << text;
    EXPECT_NE(text.find("  12.000 ms in all; 0.001 ms of it was this profile (50 ns a stamp), "
                        "11.999 ms without it\n"),
              std::string::npos)
        << text;
}

TEST(Profile, WhatIsLeftOutIsSaid) {
    control::ProfileReply reply = reading();
    EXPECT_EQ(profile_text(reply).find("ranges"), std::string::npos);
    control::Profile& profile = *reply.mutable_programs(0)->mutable_profile();
    profile.set_operations_lost(11);
    profile.set_unmatched(12);
    profile.set_refused(13);
    profile.set_ranges_lost(14);
    profile.set_knows_overlap(false);
    const std::string text = profile_text(reply);
    for (const char* note :
         {"\n  11 ranges had no room", "\n  12 ends of ranges", "\n  13 records refused",
          "\n  14 ranges are not in the timeline", "worker.account is off\n"}) {
        EXPECT_NE(text.find(note), std::string::npos) << note << '\n' << text;
    }
    EXPECT_NE(profile_html(reply).find("11 ranges without room, 13 refused, 12 ends without a "
                                       "range, 14 older ranges"),
              std::string::npos);
}

TEST(Profile, ThePictureIsNamedForTheVmOrElseForTheSession) {
    control::ProfileReply reply = reading();
    for (const char* name : {"g1", "id-1"}) {
        const std::string title = std::string(">Where the time of ") + name + " went<";
        EXPECT_NE(profile_svg(reply).find(title), std::string::npos);
        EXPECT_NE(profile_html(reply).find(title), std::string::npos);
        reply.clear_vm_name();
    }
    EXPECT_NE(profile_svg(reply).find(">Program 77 python3<"), std::string::npos);
}

TEST(Profile, NothingIsNoted) {
    control::ProfileReply reply;
    EXPECT_EQ(profile_text(reply), "no program\n");
    reply.add_programs()->set_guest_pid(5);
    EXPECT_NE(profile_text(reply).find("level 0\n  nothing is noted; see --level\n"),
              std::string::npos);
    reply.mutable_programs(0)->mutable_profile()->set_level(1);
    EXPECT_NE(profile_text(reply).find("nothing was told yet"), std::string::npos);
    const std::string html = profile_html(reply);
    EXPECT_NE(html.find("</svg>"), std::string::npos);
    EXPECT_EQ(html.find("nan"), std::string::npos);
    EXPECT_EQ(html.find("inf\""), std::string::npos);
    EXPECT_TRUE(nlohmann::json::accept(profile_chrome(reply)));
}

TEST(Profile, AFlameIsAsWideAsItsTime) {
    const std::string html = profile_html(reading());
    const auto width_of = [&](const std::string& title) {
        const std::regex box("<rect [^>]*width=\"([0-9.]+)\"[^>]*><title>" + title);
        std::smatch found;
        EXPECT_TRUE(std::regex_search(html, found, box)) << title;
        return found.empty() ? 0.0 : std::stod(found[1]);
    };
    const double all = width_of(R"(\(outside\): 12\.00 ms, 2\.00 ms of it its own)");
    EXPECT_NEAR(width_of("step: 10.00 ms") / all, 10.0 / 12, 1e-3);
    EXPECT_NEAR(width_of("train, GPU: 1.00 ms") / all, 1.0 / 12, 1e-3);
    EXPECT_NEAR(width_of("train, move: 3.00 ms") / all, 3.0 / 12, 1e-3);
    EXPECT_NEAR(width_of("infer, GPU: 4.00 ms") / all, 4.0 / 12, 1e-3);
    EXPECT_EQ(html.find("infer, program"), std::string::npos);  // none of it
    // Beside it each range, in its lane.
    EXPECT_NE(html.find("The newest 5 ranges: 10.00 ms"), std::string::npos);
    EXPECT_NEAR(width_of("move, in train: 3.00 ms") / width_of("step: 10.00 ms</title>"), 0.3,
                1e-3);
    // What is drawn later is seen; and no lane is empty.
    EXPECT_GT(html.find(">move, in train: 3.00 ms"), html.find(">train: 5.00 ms</title>"));
    const std::regex top("<rect x=\"[^\"]*\" y=\"([0-9]+)\"[^>]*><title>step: 10.00 ms</title>");
    std::smatch lane;
    ASSERT_TRUE(std::regex_search(html, lane, top));
    const std::regex head("y=\"([0-9]+)\">The newest 5 ranges");
    std::smatch title;
    ASSERT_TRUE(std::regex_search(html, title, head));
    EXPECT_LE(std::stoi(lane[1]) - std::stoi(title[1]), 24);
}

TEST(Profile, TheTraceHasEveryRangeOfAKnownOperation) {
    const auto trace = nlohmann::json::parse(profile_chrome(reading()));
    const auto& events = trace["traceEvents"];
    ASSERT_EQ(events.size(), 5U);  // The process's name, and four ranges.
    EXPECT_EQ(events[0]["args"]["name"], "python3");
    EXPECT_EQ(events[1]["name"], "move, in train");
    EXPECT_EQ(events[1]["ts"], 7000.0);
    EXPECT_EQ(events[1]["dur"], 3000.0);
    EXPECT_EQ(events[4]["name"], "step");
    for (std::size_t i = 1; i < events.size(); ++i) {
        EXPECT_EQ(events[i]["ph"], "X");
        EXPECT_EQ(events[i]["pid"], 77);
        EXPECT_EQ(events[i]["tid"], 3);
    }
}

TEST(Profile, AGuestsWordsStayWords) {
    control::ProfileReply hostile = reading();
    const std::string name = "</text><script src=\"//x\">alert('1')</script>&\x01";
    hostile.mutable_programs(0)->set_process_name(name);
    hostile.mutable_programs(0)->mutable_profile()->mutable_operations(1)->set_name(name);
    for (const std::string& text : {profile_html(hostile), profile_svg(hostile)}) {
        EXPECT_EQ(text.find("<script"), std::string::npos);
        EXPECT_EQ(text.find("</text><"), std::string::npos);
        EXPECT_EQ(text.find('\x01'), std::string::npos);
        EXPECT_NE(text.find("&lt;script src=&quot;//x&quot;&gt;"), std::string::npos);
    }
    EXPECT_TRUE(nlohmann::json::accept(profile_chrome(hostile)));
}

/// Rows that name each other, themselves, or one number twice, a chain without end of them, and
/// times near the end of what 64 bits hold.
TEST(Profile, AGuestsNumbersCostNothing) {
    control::ProfileReply hostile;
    control::Profile& profile = *hostile.add_programs()->mutable_profile();
    profile.set_level(2);
    *profile.add_operations() = operation(1, 1, "itself", 1, 0);
    *profile.add_operations() = operation(2, 3, "one", 1, 0);
    *profile.add_operations() = operation(3, 2, "another", 1, 0);
    *profile.add_operations() = operation(3, 2, "twice", 1, 0);
    for (std::uint32_t id = 10; id < 500; ++id) {
        *profile.add_operations() = operation(id, id - 1, "deep", ~0ULL, ~0ULL);
    }
    for (const std::uint64_t end : {std::uint64_t{0}, ~std::uint64_t{0}}) {
        control::OperationRange& range = *profile.add_ranges();
        range.set_operation(1);
        range.set_begin_ns(1);
        range.set_end_ns(end);
    }
    EXPECT_EQ(in_depth(operation_nodes(profile)).size(), 494U);
    const std::string html = profile_html(hostile);
    EXPECT_LT(html.size(), 600'000U);
    EXPECT_EQ(html.find("nan"), std::string::npos);
    EXPECT_LE(count_of(html, "deep: "), 65U);  // Flames end at a depth.
    EXPECT_TRUE(nlohmann::json::accept(profile_chrome(hostile)));
    EXPECT_EQ(count_of(profile_text(hostile), "\n"), 494U + 4U);  // A head, a sum and a note.
}

}  // namespace
}  // namespace gantry::cli
