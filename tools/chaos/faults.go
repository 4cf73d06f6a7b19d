package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"lockstep.internal/libs/retry"
	"lockstep.internal/tools/stack"
)

// faultTargets returns what faults may hit. Cuts hit the link of one replica, or those of all replicas.
func (s *system) faultTargets() map[FaultKind][]string {
	var services []string
	for _, of := range []string{
		stack.State, stack.Deploys, stack.Relay, stack.WatcherOf(firstAgent), stack.DispatcherOf(firstAgent),
		stack.RelayAgentOf(firstAgent),
	} {
		services = append(services, of, of+"#2")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cuts := map[string]bool{}
	for name := range s.links {
		cuts[name], cuts[replicaNumber.ReplaceAllString(name, "")] = true, true
	}
	return map[FaultKind][]string{
		FaultKill:  append(slices.Clone(services), nats, postgres),
		FaultPause: append(slices.Clone(services), nats),
		FaultCut:   slices.Collect(maps.Keys(cuts)),
	}
}

// inject injects the faults at their times since the start of the load. Every fault has ended when it returns.
func (s *system) inject(ctx context.Context, faults []Fault, record *recorder) error {
	began := time.Now()
	for _, f := range faults {
		if err := retry.Sleep(ctx, time.Until(began.Add(f.At))); err != nil {
			return nil //nolint:nilerr // the load has failed
		}
		injected := Injected{Fault: f, From: time.Now()}
		err := s.begin(f)
		if err == nil {
			_ = retry.Sleep(ctx, f.For) // also a canceled fault is ended
			err = s.end(context.WithoutCancel(ctx), f)
		}
		injected.Until = time.Now()
		record.write(entry{Fault: &injected})
		if err != nil {
			return fmt.Errorf("%s %s: %w", f.Kind, f.Target, err)
		}
	}
	return nil
}

func (s *system) begin(f Fault) error {
	switch {
	case f.Kind == FaultCut:
		for _, l := range s.linksOf(f.Target) {
			l.cut()
		}
		return nil
	case f.Target == postgres:
		s.Database().Kill()
		return nil
	case f.Target == nats && f.Kind == FaultKill:
		return s.nats.current().Kill()
	case f.Target == nats:
		return s.nats.current().Signal(syscall.SIGSTOP)
	case f.Kind == FaultKill:
		return s.Kill(f.Target)
	default:
		return s.Signal(f.Target, syscall.SIGSTOP)
	}
}

func (s *system) end(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	switch {
	case f.Kind == FaultCut:
		for _, l := range s.linksOf(f.Target) {
			l.restore()
		}
		return nil
	case f.Target == postgres:
		return s.Database().Restart(ctx)
	case f.Target == nats && f.Kind == FaultKill:
		return s.nats.start(ctx)
	case f.Target == nats:
		return s.nats.current().Signal(syscall.SIGCONT)
	case f.Kind == FaultKill:
		return s.StartService(ctx, f.Target)
	default:
		return s.Signal(f.Target, syscall.SIGCONT)
	}
}

var errFaults = errors.New("the system has faults")
