// Machine types of the EGL names that cudaEGL.h uses; see conformance/cuda_abi/README.md.
#pragma once
typedef void* EGLImageKHR;
typedef void* EGLStreamKHR;
typedef void* EGLSyncKHR;
