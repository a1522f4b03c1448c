// SPDX-License-Identifier: Apache-2.0
// The devices that the program runs on: two of the machine's GPUs, or one GPU in two contexts.
#pragma once

namespace device_test
{

//! Devices 0 and 1. On a machine with one GPU device 1 is a second context of it: the libraries under test are told that it is a device of
//! its own (they find the driver by dlsym, which the link wraps), so that they keep a state, load the code and launch for each. What a second
//! GPU would add is other silicon; memory, streams, code and graphs belong to a context already.
class Devices
{
public:
    //! Before anything else is done with CUDA. `count` of the machine, at least 1.
    explicit Devices(int count);

    int count() const
    {
        return 2;
    }
    bool isSecondContext() const
    {
        return mIsSecondContext;
    }
    //! Make a device current to this thread.
    void use(int device) const;

private:
    bool mIsSecondContext;
};

} // namespace device_test
