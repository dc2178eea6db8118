// Machine types of the OpenGL names that cudaGL.h uses; see conformance/cuda_abi/README.md.
#pragma once
typedef unsigned int GLuint;
typedef unsigned int GLenum;
