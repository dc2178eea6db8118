#include "host-daemon/softgpu/code/global_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/kernel_reach.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kForeignPage = 4096;

/// Pages outside the arena may be shared by modules (another driver packs tightly): counted. Never
/// destroyed: threads may outlive exit().
struct ForeignPages {
    std::mutex mutex;
    std::map<std::uint64_t, unsigned> users;
};

ForeignPages& foreign_pages() {
    static auto* pages = new ForeignPages;
    return *pages;
}

bool map_foreign(std::uint64_t first, std::uint64_t last) {
    auto& [mutex, users] = foreign_pages();
    const std::lock_guard lock(mutex);
    for (std::uint64_t page = first; page < last; page += kForeignPage) {
        if (users[page]++ != 0) {
            continue;
        }
        void* wanted = reinterpret_cast<void*>(page);
        void* got = mmap(wanted, kForeignPage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == wanted) {
            kernel_reach().add(page, kForeignPage);
            continue;
        }
        if (got != MAP_FAILED) {
            munmap(got, kForeignPage);
        }
        for (std::uint64_t undo = first; undo <= page; undo += kForeignPage) {
            if (--users[undo] == 0) {
                users.erase(undo);
                if (undo != page) {
                    end_reach(undo, kForeignPage);
                    munmap(reinterpret_cast<void*>(undo), kForeignPage);
                }
            }
        }
        return false;
    }
    return true;
}

void unmap_foreign(std::uint64_t first, std::uint64_t bytes) {
    auto& [mutex, users] = foreign_pages();
    const std::lock_guard lock(mutex);
    for (std::uint64_t page = first; page < first + bytes; page += kForeignPage) {
        if (--users[page] == 0) {
            users.erase(page);
            end_reach(page, kForeignPage);
            munmap(reinterpret_cast<void*>(page), kForeignPage);
        }
    }
}

std::uint64_t down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }

std::uint64_t up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

bool in_window(std::uint64_t address) {
    return address >= kGlobalsBase && address < kGlobalsBase + kGlobalsBytes;
}

}  // namespace

GlobalBlock::~GlobalBlock() {
    for (const Piece& piece : pieces_) {
        if (piece.foreign) {
            unmap_foreign(piece.address, piece.bytes);
        } else {
            Arena::instance().free_globals(device_, piece.address, piece.bytes);
        }
    }
}

Result<void> GlobalBlock::take(std::uint64_t first, std::uint64_t last) {
    const bool foreign = !in_window(first);
    const bool good = foreign ? map_foreign(first, last)
                              : Arena::instance().allocate_globals_at(device_, first, last - first);
    if (!good) {
        return Error{Code::kFailedPrecondition, "module.place",
                     "Module variables cannot be placed at " + std::to_string(first) +
                         ": the addresses are in use in this process."};
    }
    pieces_.push_back({first, last - first, foreign});
    return {};
}

Result<std::vector<std::uint64_t>> GlobalBlock::allocate(const std::vector<GlobalNeed>& needs) {
    std::vector<std::uint64_t> addresses(needs.size());
    std::uint64_t total = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;  // Wanted, in whole units.
    for (std::size_t i = 0; i < needs.size(); ++i) {
        const GlobalNeed& need = needs[i];
        if (need.wanted != 0) {
            const std::uint64_t unit = in_window(need.wanted) ? kGlobalsBlock : kForeignPage;
            spans.emplace_back(down(need.wanted, unit), up(need.wanted + need.bytes, unit));
            addresses[i] = need.wanted;
            continue;
        }
        total = up(total, std::max<std::uint64_t>(need.align, 16));
        addresses[i] = total;  // An offset for now.
        total += std::max<std::uint64_t>(need.bytes, 1);
    }
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 0; i < spans.size();) {
        const std::uint64_t first = spans[i].first;
        std::uint64_t last = spans[i].second;
        for (++i; i < spans.size() && spans[i].first <= last; ++i) {
            last = std::max(last, spans[i].second);
        }
        GANTRY_TRY(take(first, last));
    }
    if (total == 0) {
        return addresses;
    }
    const auto base = Arena::instance().allocate_globals(device_, total);
    if (!base) {
        return Error{
            Code::kResourceExhausted, "module.memory",
            "No device memory for " + std::to_string(total) + " bytes of module variables."};
    }
    pieces_.push_back({*base, total, false});
    for (std::size_t i = 0; i < needs.size(); ++i) {
        addresses[i] += needs[i].wanted == 0 ? *base : 0;
    }
    return addresses;
}

}  // namespace gantry::softgpu
