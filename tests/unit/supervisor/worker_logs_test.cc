// What workers' logs may take.
#include "host-daemon/supervisor/workers/worker_logs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "proto/control/channel.h"

namespace gantry::supervisor {
namespace {

class WorkerLogs : public testing::Test {
protected:
    ~WorkerLogs() override { std::filesystem::remove_all(folder_); }

    std::string log(const std::string& name, const std::string& text, std::int64_t written_s) {
        const std::string path = folder_ + "/" + name + ".log";
        std::ofstream(path) << text;
        const timespec times[2] = {{written_s, 0}, {written_s, 0}};
        EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
        return path;
    }
    [[nodiscard]] std::size_t files() const {
        std::size_t count = 0;
        for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) {
            ++count;
        }
        return count;
    }

    std::string folder_ = [] {
        char pattern[] = "/tmp/worker_logs_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
};

TEST_F(WorkerLogs, OfTheDeadTheNewestAreKept) {
    std::ofstream(folder_ + "/live.sock");
    const std::string live = log("live", "old, but its worker lives\n", 1);
    for (int i = 0; i < 40; ++i) {
        log("dead" + std::to_string(i), "text\n", 100 + i);
    }
    bound_worker_logs(folder_);
    EXPECT_EQ(files(), kDeadLogsKept + 2);
    EXPECT_TRUE(std::filesystem::exists(live));
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/dead39.log"));
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/dead23.log"));
}

TEST_F(WorkerLogs, OneThatGrowsWithoutEndKeepsItsLastLines) {
    std::ofstream(folder_ + "/live.sock");
    const std::string path = folder_ + "/live.log";
    std::ofstream worker(path, std::ios::app);
    for (int i = 0; i < 200'000; ++i) {
        worker << "line " << i << "\n";
    }
    worker.flush();
    ASSERT_GT(std::filesystem::file_size(path), kLogBytesMax);
    bound_worker_logs(folder_);
    EXPECT_LE(std::filesystem::file_size(path), kLogBytesKept + 100);
    worker << "the next line" << std::endl;
    std::ifstream read(path);
    std::string first;
    std::getline(read, first);
    EXPECT_NE(first.find("gantryd has cut"), std::string::npos) << first;
    std::string second;
    std::getline(read, second);
    EXPECT_EQ(second.find("line "), 0U) << "a whole line: " << second;
    std::string last;
    for (std::string line; std::getline(read, line);) {
        last = line;
    }
    EXPECT_EQ(last, "the next line");
}

TEST_F(WorkerLogs, ASocketWithoutAWorkerIsOfTheDead) {
    const std::string living = folder_ + "/living.sock";
    auto listener = control::PacketListener::bind(living);
    ASSERT_TRUE(listener.ok());
    {
        auto gone = control::PacketListener::bind(folder_ + "/gone.sock");
        ASSERT_TRUE(gone.ok());
    }
    std::ofstream(folder_ + "/adopted.sock");
    forget_dead_workers(folder_, {folder_ + "/adopted.sock"});
    EXPECT_TRUE(std::filesystem::exists(living));
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/adopted.sock"));
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/gone.sock"));
}

}  // namespace
}  // namespace gantry::supervisor
