package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/testkit/port"
)

// portsFile has the ports of the last run, by the name of what listens.
func (s *Stack) portsFile() string { return filepath.Join(s.dir, "ports.json") }

// reservePorts holds the ports that people and tools connect to: those that the options name, and in a kept folder
// those of its last run. If another program has taken a port of the last run, it chooses another one. Servers of
// a temporary stack without a port choose one themselves, unless others need it before.
func (s *Stack) reservePorts() error {
	last := map[string]int{}
	if raw, err := os.ReadFile(s.portsFile()); err == nil {
		_ = json.Unmarshal(raw, &last) // written partially: as the first run
	}
	ports := map[string]int{}
	number := func(name string, wanted int, needed bool) (int, error) {
		if wanted == 0 && s.temporary && !needed {
			return 0, nil
		}
		held, err := s.reservePort(name, wanted, last[name])
		if err != nil {
			return 0, err
		}
		s.held = append(s.held, held)
		ports[name] = held.Number()
		return held.Number(), nil
	}
	address := func(name string, listen *string, needed bool) error {
		host, wanted, err := net.SplitHostPort(*listen)
		if err != nil {
			return fault.Wrap(err, errcode.InvalidArgument, "address %q of %s must be HOST:PORT", *listen, name)
		}
		n, err := strconv.ParseUint(wanted, 10, 16)
		if err != nil {
			return fault.Wrap(err, errcode.InvalidArgument, "port %q of %s must be a number from 0 to 65535", wanted, name)
		}
		reserved, err := number(name, int(n), needed)
		*listen = net.JoinHostPort(host, strconv.Itoa(reserved))
		return err
	}
	var errs []error
	for _, l := range []struct {
		name   string
		listen *string
	}{
		{State, &s.opts.APIListen},
		{Deploys, &s.opts.DeploysListen},
		{Relay, &s.opts.RelayListen},
		{Runners, &s.opts.RunnersListen},
		{Router, &s.opts.RouterListen},
		{Admission, &s.opts.AdmissionListen},
	} {
		errs = append(errs, address(l.name, l.listen, false))
	}
	if s.opts.Gateway { // others know its ports before it starts
		errs = append(errs, address(Gateway, &s.opts.GatewayListen, true),
			address(Gateway+" "+ListenerSSH, &s.opts.GatewaySSHListen, true))
	}
	err := errors.Join(errs...)
	var natsErr, databaseErr error
	s.opts.NATSPort, natsErr = number("NATS", s.opts.NATSPort, false)
	s.databasePort, databaseErr = number("PostgreSQL", 0, false)
	if err := errors.Join(err, natsErr, databaseErr); err != nil || s.temporary {
		return err
	}
	raw, err := json.Marshal(ports)
	if err != nil {
		return fmt.Errorf("encode the ports: %w", err)
	}
	if err := os.WriteFile(s.portsFile(), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the ports: %w", err)
	}
	return nil
}

// reservePort holds the wanted port, or else the last one if it is free, or else a free one.
func (s *Stack) reservePort(name string, wanted, last int) (*port.Held, error) {
	if wanted != 0 {
		held, err := port.HoldNumber(wanted)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fault.Wrap(err, errcode.InvalidArgument,
				"port %d of %s is used by another program: stop it, or choose another port", wanted, name)
		}
		return held, err
	}
	if last != 0 {
		held, err := port.HoldNumber(last)
		if err == nil {
			return held, nil
		}
		s.progress.printf(name, "port %d of the last run is used by another program: another one is used", last)
	}
	return port.Hold()
}
