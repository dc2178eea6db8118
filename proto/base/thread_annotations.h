// Macros that tell clang's -Wthread-safety which mutex protects what. Any other compiler ignores
// them. Nothing but the preprocessor is used, so that the shim can include this header.
//
// A member that a mutex protects has GANTRY_GUARDED_BY(mutex_). A function that is called with the
// mutex held has GANTRY_REQUIRES(mutex_); so has a lambda, behind its parameter list. A function
// that takes the mutex itself may say GANTRY_EXCLUDES(mutex_). The types of proto/base/mutex.h,
// proto/base/shared_mutex.h and guest-shim/session/base/futex_mutex.h use the others.
//
// GANTRY_NO_THREAD_SAFETY_ANALYSIS takes one function out; a comment beside it says why the
// function is right.
#pragma once

#ifdef __clang__
#define GANTRY_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define GANTRY_THREAD_ATTRIBUTE(x)
#endif

// Of types.
#define GANTRY_CAPABILITY(name) GANTRY_THREAD_ATTRIBUTE(capability(name))
#define GANTRY_SCOPED_CAPABILITY GANTRY_THREAD_ATTRIBUTE(scoped_lockable)

// Of data: the mutex that protects it, or what the pointer points to.
#define GANTRY_GUARDED_BY(...) GANTRY_THREAD_ATTRIBUTE(guarded_by(__VA_ARGS__))
#define GANTRY_PT_GUARDED_BY(...) GANTRY_THREAD_ATTRIBUTE(pt_guarded_by(__VA_ARGS__))
#define GANTRY_ACQUIRED_BEFORE(...) GANTRY_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
#define GANTRY_ACQUIRED_AFTER(...) GANTRY_THREAD_ATTRIBUTE(acquired_after(__VA_ARGS__))

// Of functions: the mutex is held by the caller, or must not be.
#define GANTRY_REQUIRES(...) GANTRY_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define GANTRY_REQUIRES_SHARED(...) GANTRY_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define GANTRY_EXCLUDES(...) GANTRY_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

// Of functions that lock and unlock.
#define GANTRY_ACQUIRE(...) GANTRY_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define GANTRY_ACQUIRE_SHARED(...) GANTRY_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define GANTRY_RELEASE(...) GANTRY_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define GANTRY_RELEASE_SHARED(...) GANTRY_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define GANTRY_RELEASE_GENERIC(...) GANTRY_THREAD_ATTRIBUTE(release_generic_capability(__VA_ARGS__))
#define GANTRY_TRY_ACQUIRE(...) GANTRY_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define GANTRY_TRY_ACQUIRE_SHARED(...) \
    GANTRY_THREAD_ATTRIBUTE(try_acquire_shared_capability(__VA_ARGS__))
#define GANTRY_ASSERT_CAPABILITY(...) GANTRY_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define GANTRY_RETURN_CAPABILITY(...) GANTRY_THREAD_ATTRIBUTE(lock_returned(__VA_ARGS__))

#define GANTRY_NO_THREAD_SAFETY_ANALYSIS GANTRY_THREAD_ATTRIBUTE(no_thread_safety_analysis)
