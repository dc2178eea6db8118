// A tmpfs of one test: what it holds, and whether it is full, is nobody else's.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

namespace gantry::snapshot {

/// On a file system that a namespace of this process alone has.
inline void on_tmpfs(const char* options, const std::function<void(const std::string&)>& test) {
    std::string pattern = (std::filesystem::temp_directory_path() / "gantry-large-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    std::thread apart([&] {  // Its own view of the file systems ends with it.
        if (::unshare(CLONE_NEWNS) == 0 &&
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
            ::mount("gantry", pattern.c_str(), "tmpfs", 0, options) == 0) {
            test(pattern);
        } else {
            GTEST_SKIP() << "no tmpfs can be mounted here";
        }
    });
    apart.join();
    std::filesystem::remove_all(pattern);
}

}  // namespace gantry::snapshot
