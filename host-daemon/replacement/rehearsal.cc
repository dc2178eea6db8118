// Copy, rehearsed: each part of what is done while the guest runs, again and again, with rests
// between. Whatever slows the guest down meanwhile shows beside the report's spans.
#include <thread>

#include "host-daemon/replacement/copy.h"

namespace gantry::replacement {
namespace {

/// Some steps of most programs, so that one part's cost is not taken for the next one's.
constexpr std::chrono::milliseconds kRest{250};

}  // namespace

void Copy::rest() {
    const auto begin = Clock::now();
    std::this_thread::sleep_for(kRest);
    timeline_.note(Whom::kNobody, "rest", begin, Clock::now());
}

Result<void> Copy::pull_again(unsigned share_percent) {
    if (report_.way != Way::kPeer || everything_.size() > kInlineRunsMax) {
        return {};  // More pieces than a request holds: the first round has to do.
    }
    rest();
    control::ToWorker request;
    *request.mutable_pull_blocks()->mutable_runs() = everything_;
    request.mutable_pull_blocks()->set_without_fingerprints(true);
    request.mutable_pull_blocks()->set_share_percent(share_percent);
    GANTRY_TRY(ask(fresh_, std::move(request)));
    return {};
}

Result<void> Copy::rehearse() {
    for (unsigned i = 0; i < options_.rehearsals; ++i) {
        rest();
        GANTRY_TRY(take_graph());
        rest();
        control::ToWorker request;
        request.mutable_export_memory();
        GANTRY_TRY(ask(old_, std::move(request)));
        for (const unsigned share : {0U, options_.scan_share}) {
            rest();
            GANTRY_TRY(scan(ScanHow::kLook, share));
        }
        for (const unsigned share : {0U, options_.copy_share}) {
            GANTRY_TRY(pull_again(share));
        }
        // The fresh worker's own device alone: the guest should not notice.
        rest();
        GANTRY_TRY(digest_of(fresh_));
    }
    rest();
    return {};
}

}  // namespace gantry::replacement
