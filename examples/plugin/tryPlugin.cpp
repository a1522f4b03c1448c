// SPDX-License-Identifier: Apache-2.0
//
// Walks the plugin through the steps that TensorRT takes it through; without a device it stops where the device is needed first.
#include "attentionPlugin.h"

#include <cstdio>
#include <initializer_list>
#include <memory>

namespace
{

nvinfer1::PluginTensorDesc tensor(nvinfer1::DataType type, std::initializer_list<int64_t> extents)
{
    nvinfer1::PluginTensorDesc made{};
    made.type = type;
    made.format = nvinfer1::TensorFormat::kLINEAR;
    for (int64_t const extent : extents)
    {
        made.dims.d[made.dims.nbDims++] = extent;
    }
    return made;
}

//! Whether the creator makes nothing of fields that are no fields of the plugin.
bool refusesOtherFields()
{
    using nvinfer1::PluginFieldType;
    float const scale = 0.125F;
    nvinfer1::PluginField const others[] = {{"attention_scale", nullptr, PluginFieldType::kFLOAT32, 1},
        {"attention_scale", &scale, PluginFieldType::kFLOAT32, 0}, {"attention_scale", &scale, PluginFieldType::kINT32, 1},
        {"scale", &scale, PluginFieldType::kFLOAT32, 1}, {nullptr, &scale, PluginFieldType::kFLOAT32, 1}};
    bool refused = getAttentionPluginCreator()->createPlugin("attention", nullptr, nvinfer1::TensorRTPhase::kBUILD) == nullptr;
    for (nvinfer1::PluginField const& other : others)
    {
        nvinfer1::PluginFieldCollection const collection{1, &other};
        refused = refused && getAttentionPluginCreator()->createPlugin("attention", &collection, nvinfer1::TensorRTPhase::kBUILD) == nullptr;
    }
    return refused;
}

} // namespace

int main()
{
    using nvinfer1::DataType;
    if (!refusesOtherFields())
    {
        std::printf("plugin: takes fields that it does not have\n");
        return 1;
    }
    float const scale = 0.125F;
    int32_t const windowSize = 64;
    nvinfer1::PluginField const fields[] = {{"attention_scale", &scale, nvinfer1::PluginFieldType::kFLOAT32, 1},
        {"sliding_window_size", &windowSize, nvinfer1::PluginFieldType::kINT32, 1}};
    nvinfer1::PluginFieldCollection const collection{2, fields};
    std::unique_ptr<nvinfer1::IPluginV3> plugin(
        getAttentionPluginCreator()->createPlugin("attention", &collection, nvinfer1::TensorRTPhase::kBUILD));
    auto* build = static_cast<nvinfer1::IPluginV3OneBuild*>(plugin->getCapabilityInterface(nvinfer1::PluginCapabilityType::kBUILD));

    nvinfer1::PluginTensorDesc const descs[] = {tensor(DataType::kHALF, {2, 300, 8, 64}), tensor(DataType::kHALF, {2, 300, 2, 64}),
        tensor(DataType::kHALF, {2, 300, 2, 64}), tensor(DataType::kINT32, {3}), tensor(DataType::kHALF, {2, 300, 8, 64})};
    nvinfer1::DynamicPluginTensorDesc inOut[5]{};
    bool supported = true;
    for (int32_t pos = 0; pos < 5; ++pos)
    {
        inOut[pos].desc = descs[pos];
        supported = supported && build->supportsFormatCombination(pos, inOut, 4, 1);
    }
    std::printf("plugin: %s\n", supported ? "supported" : "not supported on this machine");
    if (!supported)
    {
        return 0;
    }

    auto* runtime = static_cast<nvinfer1::IPluginV3OneRuntime*>(plugin->getCapabilityInterface(nvinfer1::PluginCapabilityType::kRUNTIME));
    std::unique_ptr<nvinfer1::IPluginV3> attached(runtime->attachToContext(nullptr));
    runtime = static_cast<nvinfer1::IPluginV3OneRuntime*>(attached->getCapabilityInterface(nvinfer1::PluginCapabilityType::kRUNTIME));
    int32_t const configured = build->configurePlugin(inOut, 4, inOut + 4, 1);
    int32_t const loaded = runtime->onShapeChange(descs, 4, descs + 4, 1);
    std::printf("plugin: configured %d, loaded %d, serialises %d fields\n", configured, loaded, runtime->getFieldsToSerialize()->nbFields);
    return configured == 0 && loaded == 0 ? 0 : 1;
}
