// Machine types of the VDPAU names that cudaVDPAU.h uses; see conformance/cuda_abi/README.md.
#pragma once
typedef unsigned int VdpDevice;
typedef unsigned int VdpVideoSurface;
typedef unsigned int VdpOutputSurface;
typedef void VdpGetProcAddress;
