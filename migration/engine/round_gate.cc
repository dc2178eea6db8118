#include "migration/engine/round_gate.h"

#include <algorithm>

namespace gantry::engine {

RoundGate::Entry RoundGate::begin(std::uint64_t round, std::uint64_t batch, bool is_receiving) {
    if (at_work_ != 0 && at_work_round_ < round) {
        return Entry::kWait;
    }
    if (!is_receiving) {
        dropped_round_ = std::max(dropped_round_, round);
        return Entry::kUnwanted;
    }
    enter(round);
    if (round != round_ || !begun_.insert(batch).second) {
        return Entry::kDrop;
    }
    ++at_work_;
    at_work_round_ = round;
    return Entry::kApply;
}

RoundGate::Verdict RoundGate::end(std::uint64_t round, bool is_applied) {
    --at_work_;
    if (!is_applied) {
        dropped_round_ = std::max(dropped_round_, round);
        return Verdict::kLost;
    }
    if (round != round_) {
        return Verdict::kOpen;
    }
    ++applied_count_;
    return look();
}

RoundGate::Verdict RoundGate::await(std::uint64_t round, std::uint64_t batch_count) {
    enter(round);
    if (round != round_) {
        return Verdict::kOpen;
    }
    awaited_count_ = batch_count;
    const Verdict verdict = look();
    return verdict == Verdict::kOpen && dropped_round_ == round ? Verdict::kLost : verdict;
}

RoundGate::Verdict RoundGate::look() {
    if (!awaited_count_ || applied_count_ < *awaited_count_) {
        return Verdict::kOpen;
    }
    awaited_count_.reset();
    return Verdict::kApplied;
}

void RoundGate::enter(std::uint64_t round) {
    if (round > round_) {
        round_ = round;
        begun_.clear();
        applied_count_ = 0;
        awaited_count_.reset();
    }
}

}  // namespace gantry::engine
