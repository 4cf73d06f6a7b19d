package proxy

import "time"

// Hurry sets after what time it is looked whether a caller is gone whose answer is awaited, and how long a caller may read nothing, on connections that are taken from the server.
func (h *Handler) Hurry(attention, stall time.Duration) { h.attention, h.stall = attention, stall }

// Directs counts the connections that are taken from the server.
func (h *Handler) Directs() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.directs)
}
