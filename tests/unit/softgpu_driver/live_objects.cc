// An object of the soft driver that is not destroyed lives until the process ends, as CUDA says: no
// leak. Tests that leave some say so to LeakSanitizer by this file.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
