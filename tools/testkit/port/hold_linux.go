package port

import (
	"errors"
	"fmt"
	"syscall"
)

// HoldNumber binds a port without listening; 0 takes a free one. SO_REUSEADDR, which Go, PostgreSQL and NATS set, lets
// a server listen on it.
func HoldNumber(number int) (*Held, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold a port: open a socket: %w", err)
	}
	number, err = bind(socket, number)
	if err != nil {
		return nil, fmt.Errorf("hold a port: %w", errors.Join(err, syscall.Close(socket)))
	}
	return &Held{number: number, release: func() error {
		if err := syscall.Close(socket); err != nil {
			return fmt.Errorf("release port %d: %w", number, err)
		}
		return nil
	}}, nil
}

func bind(socket, number int) (int, error) {
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	bound, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, fmt.Errorf("getsockname: %w", err)
	}
	address, is := bound.(*syscall.SockaddrInet4)
	if !is {
		return 0, fmt.Errorf("unexpected address %T", bound)
	}
	return address.Port, nil
}
