// What the gantry command writes: virsh's words, and JSON that keeps every field.
#include "migration/cli/print.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "migration/cli/top.h"

namespace gantry::cli {
namespace {

control::SessionStatus moving() {
    control::SessionStatus status;
    status.set_session_id("11111111-0000-4000-8000-000000000001");
    status.set_vm_name("g1");
    status.set_state("running");
    status.set_epoch(3);
    control::MoveProgress& move = *status.mutable_move();
    move.set_direction("outgoing");
    move.set_phase("precopy");
    move.set_percent(42.4);
    move.set_round(2);
    move.set_bytes_processed(96ULL << 20);
    move.set_bytes_on_wire(33ULL << 20);
    move.set_bytes_remaining(8ULL << 20);
    move.set_downtime_expected_us(120'500);
    return status;
}

TEST(CliPrint, WatchLineOfAMoveUnderWay) {
    EXPECT_EQ(watch_line(moving()),
              "g1: outgoing migration: [ 42 %] precopy, round 2, 96.0 MiB processed, 33.0 MiB on "
              "the wire, 8.0 MiB remaining, expected downtime 120.5 ms");
}

TEST(CliPrint, AnOutgoingMoveShowsWhetherItConverges) {
    control::SessionStatus status = moving();
    status.mutable_move()->set_bytes_per_second(512.0 * (1 << 20));
    status.mutable_move()->set_dirty_bytes_per_second(12.0 * (1ULL << 30));
    EXPECT_NE(watch_line(status).find("remaining, link 512.0 MiB/s, programs change 12.0 GiB/s, "),
              std::string::npos)
        << watch_line(status);
}

TEST(CliPrint, PreflightSaysHowLongAMoveMayTakeAndPause) {
    control::PreflightReply reply;
    reply.set_can_move(true);
    EXPECT_EQ(preflight_text(reply).find("Link:"), std::string::npos) << "no move has told yet";
    reply.set_link_bytes_per_second(1ULL << 30);
    reply.set_first_round_expected_us(16'040'000);
    reply.set_downtime_max_us(10'000'000);
    EXPECT_NE(preflight_text(reply).find(
                  "Link:           1024.0 MiB/s in the last move; first round about 16.0 s\n"
                  "Pause:          refused if longer than 10000.0 ms\n"),
              std::string::npos)
        << preflight_text(reply);
}

TEST(CliPrint, TheTargetDoesNotPretendToKnowWhatIsLeft) {
    control::SessionStatus status = moving();
    status.mutable_move()->set_direction("incoming");
    EXPECT_EQ(watch_line(status).find("remaining"), std::string::npos);
}

TEST(CliPrint, WatchLineOfAMoveThatHasEnded) {
    control::SessionStatus status = moving();
    control::MoveProgress& move = *status.mutable_move();
    move.set_phase("completed");
    move.set_outcome("moved");
    move.set_percent(100);
    move.set_downtime_us(98'000);
    move.set_memory_digest("00ff");
    EXPECT_EQ(watch_line(status),
              "g1: outgoing migration: [100 %] completed (moved), round 2, 96.0 MiB processed, "
              "33.0 MiB on the wire, expected downtime 120.5 ms, downtime 98.0 ms, memory digest "
              "00ff");
}

TEST(CliPrint, WatchLineSaysWhyAMoveFailed) {
    control::SessionStatus status = moving();
    control::MoveProgress& move = *status.mutable_move();
    move.set_phase("failed");
    move.set_outcome("rolled back");
    move.set_error_reason("migration.aborted_by_operator");
    move.set_error_text("The operator aborted the migration.");
    EXPECT_NE(watch_line(status).find("failed (rolled back): The operator aborted the migration. "
                                      "[migration.aborted_by_operator]"),
              std::string::npos);
}

TEST(CliPrint, ALocalProgramIsNamedByItsSession) {
    control::SessionStatus status;
    status.set_session_id("local-17-4");
    status.set_state("running");
    EXPECT_EQ(watch_line(status), "local-17-4: running");
}

TEST(CliPrint, StatusShowsProgramsFencedWorkersAlertsAndAnOperatorsWord) {
    control::ListSessionsReply reply;
    reply.set_host("hosta");
    reply.set_gantry_version("0.1");
    control::SessionStatus& status = *reply.add_sessions();
    status.set_session_id("s");
    status.set_state("granted");
    status.set_source_fenced(true);
    status.add_alerts("session.split_brain: The guest runs here although it was given away.");
    control::WorkerInfo& worker = *status.add_workers();
    worker.set_pid(77);
    worker.set_guest_pid(42);
    worker.set_process_name("train.py");
    worker.set_state("fenced");
    worker.set_device_memory_bytes(20ULL << 30);
    worker.set_refused_commands(5);
    const std::string text = status_text(reply);
    EXPECT_NE(text.find("Device:  none usable"), std::string::npos);
    EXPECT_NE(text.find("program 42 train.py (worker 77): fenced, GPU memory 20.0 GiB"),
              std::string::npos);
    EXPECT_NE(text.find("5 refused"), std::string::npos);
    EXPECT_NE(text.find("source host counts as fenced"), std::string::npos);
    EXPECT_NE(text.find("! session.split_brain: The guest runs here"), std::string::npos);
}

TEST(CliPrint, StatusSaysWhatOfTheDeviceIsInUseAndFree) {
    control::ListSessionsReply reply;
    reply.set_device("H100");
    reply.set_device_number(1);
    reply.set_memory_bytes(80ULL << 30);
    reply.set_memory_promised_bytes(1ULL << 30);
    for (const std::uint32_t device : {1U, 0U}) {
        control::WorkerInfo& worker = *reply.add_sessions()->add_workers();
        worker.set_device(device);
        worker.set_device_memory_bytes(20ULL << 30);
    }
    EXPECT_NE(
        status_text(reply).find("Device:  H100, 80.0 GiB: 20.0 GiB in use by programs, 1024.0 "
                                "MiB promised, 60.0 GiB free\n"),
        std::string::npos)
        << status_text(reply);
}

/// A host of two GPUs, a session on the second, and a third GPU that cannot be used.
control::ListSessionsReply three_gpus() {
    control::ListSessionsReply reply;
    reply.set_host("hosta");
    reply.set_device("H100");
    for (std::uint32_t device = 0; device < 3; ++device) {
        control::GpuStatus& gpu = *reply.add_gpus();
        gpu.set_device(device);
        gpu.set_name(device == 0 ? "H100" : device == 1 ? "H200" : "");
        gpu.set_memory_bytes(device == 2 ? 0 : 80ULL << 30);
        gpu.set_error(device == 2 ? "device.open: no" : "");
    }
    reply.mutable_gpus(1)->set_memory_promised_bytes(20ULL << 30);
    reply.mutable_gpus(1)->set_memory_used_bytes(40ULL << 30);
    control::SessionStatus& session = *reply.add_sessions();
    session.set_session_id("s");
    session.set_device(1);
    session.set_device_name("H200");
    session.add_workers()->set_device(1);
    return reply;
}

TEST(CliPrint, StatusAndTopNameEachGpuOfAHostThatHasSeveral) {
    const std::string status = status_text(three_gpus());
    for (const char* line :
         {"GPU 0:   H100, 80.0 GiB: 0.0 KiB in use by programs, 0.0 KiB promised, 80.0 GiB free\n",
          "GPU 1:   H200, 80.0 GiB: 40.0 GiB in use by programs, 20.0 GiB promised, 40.0 GiB "
          "free\n",
          "GPU 2:   cannot be used: device.open: no\n", "   on GPU 1: H200\n"}) {
        EXPECT_NE(status.find(line), std::string::npos) << line << "in:\n" << status;
    }
    const std::string top = top_text({three_gpus(), three_gpus(), 1.0});
    EXPECT_NE(top.find("GPU 1       [" + std::string(18, '#') + std::string(18, '-') +
                       "]  40.0 GiB of 80.0 GiB used, 20.0 GiB promised  H200\n"),
              std::string::npos)
        << top;
    EXPECT_NE(top.find("GPU 2 "), std::string::npos) << top;
    EXPECT_EQ(top_json({three_gpus(), three_gpus(), 1.0})["programs"][0]["gpu"], 1);
    control::PreflightReply preflight;
    preflight.set_source_device("H100");
    preflight.set_source_gpu(3);
    preflight.set_target_device("H200");
    preflight.set_target_gpu(0);
    preflight.set_target_host("hostb");
    EXPECT_NE(preflight_text(preflight).find("Source device:  H100 (GPU 3)\n"
                                             "Target device:  H200 (GPU 0) on hostb\n"),
              std::string::npos)
        << preflight_text(preflight);
    control::SchedReply sched;
    sched.set_enabled(true);
    sched.add_gpus()->set_device(1);
    sched.mutable_gpus(0)->set_device_name("H200");
    EXPECT_NE(sched_text(sched).find("GPU 1, H200: "), std::string::npos) << sched_text(sched);
}

TEST(CliPrint, PreflightNamesReasonAndVerdict) {
    control::PreflightReply reply;
    reply.set_target_host("hostc");
    control::Finding& finding = *reply.add_findings();
    finding.set_refusal(true);
    finding.set_reason("gpu.memory");
    finding.set_text("hostc has 256 MiB.");
    EXPECT_NE(preflight_text(reply).find("error: hostc has 256 MiB. [gpu.memory]\n"
                                         "Migration: refused\n"),
              std::string::npos);
    reply.mutable_findings(0)->set_refusal(false);
    reply.set_can_move(true);
    EXPECT_NE(preflight_text(reply).find("warning: hostc"), std::string::npos);
    EXPECT_NE(preflight_text(reply).find("Migration: possible\n"), std::string::npos);
}

TEST(CliPrint, JsonKeepsFieldNamesAndZeros) {
    const auto json = nlohmann::json::parse(to_json(moving(), false));
    EXPECT_EQ(json["vm_name"], "g1");
    EXPECT_EQ(json["move"]["bytes_on_wire"], 33ULL << 20);
    EXPECT_EQ(json["move"]["downtime_us"], 0);
    EXPECT_EQ(json["move"]["outcome"], "");
}

TEST(CliPrint, ErrorsInBothForms) {
    const Error error{Code::kNotFound, "session.unknown", "no session \"g9\"\non this host"};
    EXPECT_EQ(error_text(error), "gantry: no session \"g9\"\non this host [session.unknown]\n");
    EXPECT_EQ(error_text({Code::kFailedPrecondition, "gpu.memory", "too small. [gpu.memory]"}),
              "gantry: too small. [gpu.memory]\n");
    const std::string line = error_json(error);
    EXPECT_EQ(line.find('\n'), line.size() - 1);  // one line
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["error"]["reason"], "session.unknown");
    EXPECT_EQ(json["error"]["text"], error.text);
}

}  // namespace
}  // namespace gantry::cli
