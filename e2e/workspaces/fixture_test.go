package workspaces_test

import (
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// agentClock is the clock of the agent named clockAgent.
var agentClock = &fixture.Clock{}

var shared = fixture.Share(func(testing.TB) stack.Options {
	return stack.Options{Configure: func(service string, config any) {
		if service == stack.Watcher {
			config.(*watcher.Config).TickInterval = time.Second
		}
		agentClock.For(clockAgent)(service, config)
	}}
}, func(s *fixture.System) {
	configureAgent(s, s.AgentID, &statev1.AgentConfiguration{UnschedulablePatience: durationpb.New(time.Second)})
}, nil)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 8)) }
