//go:build !linux

package port

import (
	"context"
	"fmt"
	"net"
	"strconv"
)

// HoldNumber checks that a port is free; 0 finds a free one.
func HoldNumber(number int) (*Held, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(number)))
	if err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	address, is := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	if !is {
		return nil, fmt.Errorf("hold a port: unexpected address %s", listener.Addr())
	}
	return &Held{number: address.Port}, nil
}
