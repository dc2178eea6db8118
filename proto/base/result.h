// Result<T>: a value or an Error, for operating errors (see assert.h for programmer errors).
//
// An Error carries a code that says what the caller can do (the gRPC/absl code set), a stable
// reason id that logs, manual and tests share (for example "stream.checksum"), and one sentence
// that names what was wrong, where, and what to do. No exceptions cross our functions.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "proto/base/assert.h"

namespace gantry {

enum class Code {
    kOk = 0,
    kCancelled = 1,
    kUnknown = 2,
    kInvalidArgument = 3,
    kDeadlineExceeded = 4,
    kNotFound = 5,
    kAlreadyExists = 6,
    kPermissionDenied = 7,
    kResourceExhausted = 8,
    kFailedPrecondition = 9,
    kAborted = 10,
    kOutOfRange = 11,
    kUnimplemented = 12,
    kInternal = 13,
    kUnavailable = 14,
    kDataLoss = 15,
    kUnauthenticated = 16,
};

struct Error {
    Code code = Code::kUnknown;
    std::string reason;  ///< Stable id: lower case, dotted, never reworded.
    std::string text;    ///< One sentence for a person.

    [[nodiscard]] std::string to_string() const { return reason + ": " + text; }
};

template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & {
        GANTRY_ASSERT(ok(), "Result holds an error: %s", error().text.c_str());
        return std::get<0>(state_);
    }
    const T& value() const& {
        GANTRY_ASSERT(ok(), "Result holds an error: %s", error().text.c_str());
        return std::get<0>(state_);
    }
    T&& value() && {
        GANTRY_ASSERT(ok(), "Result holds an error: %s", error().text.c_str());
        return std::get<0>(std::move(state_));
    }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Error& error() const { return std::get<1>(state_); }

private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    [[nodiscard]] bool ok() const { return !error_.has_value(); }
    explicit operator bool() const { return ok(); }
    const Error& error() const { return *error_; }

private:
    std::optional<Error> error_;
};

/// Propagates the error of a Result<...> expression out of the enclosing function.
#define GANTRY_TRY(expression)                                    \
    do {                                                          \
        if (auto gantry_try_ = (expression); !gantry_try_.ok()) { \
            return gantry_try_.error();                           \
        }                                                         \
    } while (0)

#define GANTRY_CONCAT_(a, b) a##b
#define GANTRY_CONCAT(a, b) GANTRY_CONCAT_(a, b)

/// `GANTRY_ASSIGN(auto x, f());` declares x with the value, or returns the error.
#define GANTRY_ASSIGN(declaration, expression)                   \
    auto GANTRY_CONCAT(gantry_result_, __LINE__) = (expression); \
    if (!GANTRY_CONCAT(gantry_result_, __LINE__).ok()) {         \
        return GANTRY_CONCAT(gantry_result_, __LINE__).error();  \
    }                                                            \
    declaration = std::move(GANTRY_CONCAT(gantry_result_, __LINE__)).value()

}  // namespace gantry
