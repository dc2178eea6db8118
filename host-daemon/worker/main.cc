// gantry-worker: serves one guest process for gantryd, which starts it.
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <array>
#include <span>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/base/crash_log.h"
#include "host-daemon/execution/device/device.h"
#include "host-daemon/worker/service.h"
#include "proto/base/hex.h"
#include "proto/base/settings.h"

namespace gantry::worker {
namespace {

int serve(int control_fd) {
    auto listener = control::PacketListener::adopt(control::UniqueFd(control_fd));
    if (!listener.ok()) {
        fmt::print(stderr, "gantry-worker: {}\n", listener.error().to_string());
        return 2;
    }
    install_last_words();
    Service service(std::move(listener).value(), ServiceOptions{});
    return service.run();
}

/// For `gantryd --check`: says on standard output why a device may not be served.
int check_device(const std::string& driver_path) {
    const auto library = driver::DriverLibrary::load(driver_path);
    if (!library.ok()) {
        fmt::print(stderr, "gantry-worker: {}\n", library.error().to_string());
        return 2;
    }
    const auto checked = check_pageable_access(**library, 0);  // CUDA_VISIBLE_DEVICES picks it.
    if (!checked.ok()) {
        fmt::print("{}: {}\n", checked.error().reason, checked.error().text);
    }
    return checked.ok() ? 0 : 1;
}

/// One line for each device, for gantryd, which loads no driver: number, UUID in hex, compute
/// capability, bytes of memory, and the name up to the line's end. No context is made.
int list_devices(const std::string& driver_path) {
    const auto library = driver::DriverLibrary::load(driver_path);
    if (!library.ok()) {
        fmt::print("{}: {}\n", library.error().reason, library.error().text);
        return 1;
    }
    const driver::DriverApi& api = (*library)->api();
    for (int number = 0; number < (*library)->device_count(); ++number) {
        CUdevice device = 0;
        CUuuid uuid{};
        std::size_t bytes = 0;
        int major = 0;
        int minor = 0;
        std::array<char, 256> name{};
        for (const CUresult result :
             {api.cuDeviceGet(&device, number),
              api.cuDeviceGetUuid_v2 == nullptr ? CUDA_SUCCESS
                                                : api.cuDeviceGetUuid_v2(&uuid, device),
              api.cuDeviceTotalMem_v2(&bytes, device),
              api.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                       device),
              api.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                       device),
              api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device)}) {
            if (result != CUDA_SUCCESS) {
                fmt::print("device.facts: device {}: {}\n", number, driver::describe(api, result));
                return 1;
            }
        }
        fmt::print("{} {} {}.{} {} {}\n", number, to_hex(std::as_bytes(std::span(uuid.bytes))),
                   major, minor, bytes, name.data());
    }
    return 0;
}

int run(int argc, char** argv) {
    CLI::App app{"Executes the CUDA calls of a guest process on this host's GPU"};
    int control_fd = -1;
    app.add_option("--control-fd", control_fd,
                   "Listening socket that gantryd connects to (inherited)");
    std::string device_driver;
    app.add_option("--check-device", device_driver,
                   "Says whether the device of this CUDA driver may be served, and ends");
    std::string listed_driver;
    app.add_option("--list-devices", listed_driver,
                   "Says which devices this CUDA driver has, and ends");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;  // As the other programs; 0: help.
    }
    char problem[300];
    if (!check_setting_names(environ, problem, sizeof(problem))) {
        fmt::print(stderr, "gantry-worker: {} [worker.settings]\n", problem);
        return 2;
    }
    if (!device_driver.empty()) {
        return check_device(device_driver);
    }
    if (!listed_driver.empty()) {
        return list_devices(listed_driver);
    }
    if (control_fd < 0) {
        fmt::print(stderr, "gantry-worker: gantryd starts this program, with --control-fd\n");
        return 2;
    }
    // One heap, grown by brk: mappings made at other moments than in the worker that this one
    // replaces would change the addresses that NVIDIA's driver picks (channel_memory.cc).
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_MAX, 0);
    signal(SIGPIPE, SIG_IGN);
    return serve(control_fd);
}

}  // namespace
}  // namespace gantry::worker

int main(int argc, char** argv) { return gantry::worker::run(argc, argv); }
