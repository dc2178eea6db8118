// MemorySlot: one worker's slot in its session's memory page (proto/control/memory_page.h), so that
// the VM's quota of device memory holds for all its workers together.
//
// The page is a file in the run directory: a restarted gantryd finds it again. It goes with the
// last slot. Invariant: a slot is taken while its worker may still add to it; it is cleared after
// the worker's process has ended. Threads: any; release() from several. Failure: reason
// memory.page.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/result.h"
#include "proto/control/memory_page.h"
#include "proto/control/unique_fd.h"

namespace gantry::supervisor {

class MemorySlot {
public:
    /// A free slot; makes the page if there is none.
    static Result<MemorySlot> claim(const std::string& path);
    /// The slot of a worker that was started by an earlier gantryd.
    static Result<MemorySlot> adopt(const std::string& path, std::uint32_t index);

    [[nodiscard]] bool valid() const { return file_.valid(); }
    [[nodiscard]] int fd() const { return file_.get(); }
    [[nodiscard]] std::uint32_t index() const { return index_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    /// The worker has ended. Idempotent. Without it the slot stays taken (gantryd is restarted).
    void release();

private:
    static Result<MemorySlot> open(const std::string& path, bool create);

    std::string path_;
    control::UniqueFd file_;
    std::uint32_t index_ = 0;
};

}  // namespace gantry::supervisor
