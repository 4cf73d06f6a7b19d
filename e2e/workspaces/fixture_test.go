package workspaces_test

import (
	"os"
	"testing"
	"time"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// agentClock is the clock of the agent named clockAgent.
var agentClock = &fixture.Clock{}

var shared = fixture.Share(func(testing.TB) stack.Options {
	return stack.Options{Configure: func(service string, config any) {
		if cfg, is := config.(*watcher.Config); is {
			cfg.TickInterval = time.Second
		}
		agentClock.For(clockAgent)(service, config)
		terminationClock.For(terminationAgent)(service, config)
	}}
}, nil, nil)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 8)) }
