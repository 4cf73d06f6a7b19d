package main

import (
	"context"
)

func measureNotify(ctx context.Context, measured Measured, size Size) error { return nil }
