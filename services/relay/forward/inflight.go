package forward

import (
	"context"
	"maps"
	"slices"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
)

// add counts a request as in flight. Fault resource_exhausted.
func (h *Handler) add(p *proxiedRequest, cancel context.CancelCauseFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.inflight) >= h.cfg.MaxRequests:
		return fault.New(errcode.ResourceExhausted, "this relay has %d requests in flight, its maximum: try again",
			len(h.inflight))
	case h.perCaller[p.caller] >= h.cfg.MaxRequestsPerCaller:
		return fault.New(errcode.ResourceExhausted, "you have %d requests in flight at this relay, its maximum: try again",
			h.perCaller[p.caller])
	}
	h.inflight[p] = cancel
	h.perCaller[p.caller]++
	if h.draining && p.Verb == verbWatch {
		cancel(errDraining)
	}
	return nil
}

func (h *Handler) remove(p *proxiedRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inflight, p)
	if h.perCaller[p.caller]--; h.perCaller[p.caller] == 0 {
		delete(h.perCaller, p.caller)
	}
	h.closeIfIdle()
}

// closeIfIdle is called with the mutex held.
func (h *Handler) closeIfIdle() {
	if h.draining && len(h.inflight) == 0 {
		h.idleOnce.Do(func() { close(h.idle) })
	}
}

// Requests in flight.
func (h *Handler) Requests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.inflight)
}

var errDraining = fault.New(errcode.Unavailable, "this relay is being drained: ask another one")

// Drain ends watches, which clients restart elsewhere, and waits for all other requests. When finish is done it
// cancels what is left.
func (h *Handler) Drain(finish context.Context) {
	h.mu.Lock()
	h.draining = true
	h.closeIfIdle()
	for p, cancel := range h.inflight {
		if p.Verb == verbWatch {
			cancel(errDraining)
		}
	}
	h.mu.Unlock()
	select {
	case <-h.idle:
	case <-finish.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, cancel := range h.inflight {
			cancel(errDraining)
		}
	}
}

// Run cancels requests whose callers lose access, until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	for {
		changed := h.cfg.Directory.Changed()
		h.mu.Lock()
		inflight := maps.Clone(h.inflight)
		h.mu.Unlock()
		for p, cancel := range inflight {
			if err := h.reauthorize(p); err != nil {
				cancel(err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// permitted returns the impersonation of a request that policy permits.
func (h *Handler) permitted(p *proxiedRequest) (policy.Impersonation, error) {
	var none policy.Impersonation
	agent, found := h.cfg.Directory.Agent(p.address.AgentID)
	if !found {
		return none, fault.New(errcode.NotFound, "agent %d does not exist", p.address.AgentID)
	}
	access := policy.Access{
		AgentID: p.address.AgentID, ProjectID: agent.ProjectID, Target: p.address.Target, Reads: p.readOnly,
	}
	var role directory.Role
	caller := p.caller
	if caller.UserID == 0 {
		if err := policy.Service(caller, h.cfg.Rules, access); err != nil {
			return none, err
		}
	} else {
		user, known := h.cfg.Directory.User(caller.UserID)
		if !known || user.Blocked {
			return none, fault.New(errcode.PermissionDenied, "user %d is blocked or does not exist", caller.UserID)
		}
		caller.Admin = caller.Admin && user.Admin
		role = h.cfg.Directory.AgentRole(caller.UserID, p.address.AgentID)
		if err := policy.User(caller, role, access); err != nil {
			return none, err
		}
	}
	if p.impersonates != "" {
		return none, fault.New(errcode.PermissionDenied, "header %s is not allowed: the relay sets impersonation",
			p.impersonates)
	}
	return policy.Impersonate(caller, role), nil
}

// authorize is permitted for an agent that is not revoked.
func (h *Handler) authorize(p *proxiedRequest) (policy.Impersonation, error) {
	as, err := h.permitted(p)
	if err != nil {
		return as, err
	}
	if agent, found := h.cfg.Directory.Agent(p.address.AgentID); found && agent.Revoked {
		return as, fault.New(errcode.FailedPrecondition, "agent %d is revoked", p.address.AgentID)
	}
	return as, nil
}

func (h *Handler) setGroups(p *proxiedRequest, as policy.Impersonation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.groups = as.Groups
}

// reauthorize checks a request in flight: it must still be authorized, in no fewer groups than it began with.
func (h *Handler) reauthorize(p *proxiedRequest) error {
	now, err := h.authorize(p)
	if err != nil || p.protocol != audit.Kubernetes {
		return err
	}
	h.mu.Lock()
	groups := p.groups
	h.mu.Unlock()
	for _, group := range groups {
		if !slices.Contains(now.Groups, group) {
			return fault.New(errcode.PermissionDenied, "you left the group %s, which this request was made in: send it again",
				group)
		}
	}
	return nil
}
