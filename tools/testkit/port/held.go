package port

import (
	"net"
	"strconv"
)

// Held reserves a port until Release. A nil Held is valid and does nothing.
type Held struct {
	number  int
	release func() error
}

// Hold reserves a free port.
func Hold() (*Held, error) { return HoldNumber(0) }

// Number of the port.
func (h *Held) Number() int { return h.number }

// Address of the port, as servers listen on it and clients dial it.
func (h *Held) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(h.number)) }

// Release releases the port. Servers that listen on it are not affected. Further calls do nothing.
func (h *Held) Release() error {
	if h == nil || h.release == nil {
		return nil
	}
	release := h.release
	h.release = nil
	return release()
}
