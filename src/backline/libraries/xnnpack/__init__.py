"""XNNPACK: convolutions and linear layers on channels-last float32."""
