package proxy

import (
	"context"
	"maps"
	"slices"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
)

// enter counts a request among those that are under way, if there is room.
func (h *Handler) enter(v *visit, cancel context.CancelCauseFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.visits) >= h.cfg.MaxRequests:
		return fault.New(errcode.ResourceExhausted, "%d requests are under way at this relay, as many as may be: try again", len(h.visits))
	case h.under[v.caller] >= h.cfg.MaxRequestsPerCaller:
		return fault.New(errcode.ResourceExhausted, "%d of your requests are under way at this relay, as many as may be: try again", h.under[v.caller])
	}
	h.visits[v] = cancel
	h.under[v.caller]++
	if h.draining && v.Verb == verbWatch {
		cancel(errDrained)
	}
	return nil
}

// settle as whom a request that lasts is made.
func (h *Handler) settle(v *visit, as policy.Impersonation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.groups = as.Groups
}

func (h *Handler) leave(v *visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.visits, v)
	if h.under[v.caller]--; h.under[v.caller] == 0 {
		delete(h.under, v.caller)
	}
	h.rest()
}

// rest tells who drains that nothing is under way. It is called with the mutex held.
func (h *Handler) rest() {
	if h.draining && len(h.visits) == 0 {
		h.ended.Do(func() { close(h.idle) })
	}
}

// Requests counts those that are under way.
func (h *Handler) Requests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.visits)
}

// Drain ends watches, whose clients begin them elsewhere, waits for all other requests, and gives up what is left when finish is done.
func (h *Handler) Drain(finish context.Context) {
	h.mu.Lock()
	h.draining = true
	h.rest()
	for v, cancel := range h.visits {
		if v.Verb == verbWatch {
			cancel(errDrained)
		}
	}
	h.mu.Unlock()
	select {
	case <-h.idle:
	case <-finish.Done():
		h.mu.Lock()
		for _, cancel := range h.visits {
			cancel(errDrained)
		}
		h.mu.Unlock()
	}
}

var errDrained = fault.New(errcode.Unavailable, "this relay is being drained: ask another one")

// Run gives up requests whose callers may not do them any more, until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	for {
		changed := h.cfg.Directory.Changed()
		h.mu.Lock()
		visits := maps.Clone(h.visits)
		h.mu.Unlock()
		for v := range visits {
			if err := h.mayGoOn(v); err != nil {
				h.giveUp(v, err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// giveUp a request, if it still is under way.
func (h *Handler) giveUp(v *visit, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel, under := h.visits[v]; under {
		cancel(why)
	}
}

// mayGoOn says whether a request that is under way would still be let in, as the same user in no fewer groups.
func (h *Handler) mayGoOn(v *visit) error {
	now, err := h.admitted(v)
	if err != nil {
		return err
	}
	h.mu.Lock()
	began := v.groups
	h.mu.Unlock()
	for _, group := range began {
		if v.protocol == audit.Kubernetes && !slices.Contains(now.Groups, group) { // others have no groups
			return fault.New(errcode.PermissionDenied, "you are not in the group %s any more, as which this request was made: ask again", group)
		}
	}
	return nil
}
