//go:build !linux

package port

import (
	"context"
	"fmt"
	"net"
)

// Hold finds a free port.
func Hold() (*Held, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	address, is := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	if !is {
		return nil, fmt.Errorf("find a free port: unexpected address %s", listener.Addr())
	}
	return &Held{number: address.Port}, nil
}
