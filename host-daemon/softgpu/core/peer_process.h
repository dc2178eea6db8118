// Another process that uses this driver, as its handles name it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gantry::softgpu {

/// Start time of a process in ticks; 0 when there is none, or it only waits to be reaped; nothing
/// when the system does not tell.
std::optional<std::uint64_t> process_start(std::int32_t process);
/// Of this process.
std::uint64_t own_start();

/// Opens the file that the process holds under this number; -1 when it cannot be, when the process
/// is not the one that started then, or when the file has another name.
int open_peer_file(std::int32_t process, std::uint64_t started, std::int32_t file,
                   const std::string& name);

}  // namespace gantry::softgpu
