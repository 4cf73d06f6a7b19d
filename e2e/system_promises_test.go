package e2e_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestWorkspaces is one system at work, as its users see it.
func TestWorkspaces(t *testing.T) {
	t.Parallel()
	now := &aheadClock{}
	s := start(t, func(service string, config any) {
		if service == stack.Watcher {
			config.(*watcher.Config).TickInterval = time.Second
		}
		now.of(patientAgent)(service, config)
	})
	s.configure(s.agent, &statev1.AgentConfiguration{UnschedulablePatience: durationpb.New(time.Second)})
	s.together(
		promise{"created becomes Running", createdBecomesRunning},
		promise{"stop keeps the volume", stopKeepsTheVolume},
		promise{"restart stops and starts", restartStopsAndStarts},
		promise{"restart of a stopped one starts it", restartOfAStoppedOneStartsIt},
		promise{"terminated is gone for ever", terminatedIsGoneForEver},
		promise{"a missing image fails readably and is mended", missingImageFailsReadablyAndIsMended},
		promise{"a crashing image fails readably and is mended", crashingImageFailsReadablyAndIsMended},
		promise{"what was complete once still fails", whatWasCompleteOnceStillFails},
		promise{"what is refused is tried again, ever less", refusedIsTriedAgainEverLess},
		promise{"patience ends by the agent's clock", patienceEndsByTheAgentsClock(now)},
		promise{"unschedulable fails past patience", unschedulableFailsPastPatience},
		promise{"quotas hold", quotasHold},
		promise{"age policies end what nobody ends", agePoliciesEndWhatNobodyEnds},
		promise{"configuration is followed", configurationIsFollowed},
		promise{"others' trouble is not one's own", othersTroubleIsNotOnesOwn},
		promise{"secrets reach the cluster only", secretsReachTheClusterOnly},
		promise{"secrets are not quoted in errors", secretsAreNotQuotedInErrors},
		promise{"a devfile becomes a workspace", devfileBecomesAWorkspace},
		promise{"agents of one cluster keep to their own", agentsOfOneClusterKeepToTheirOwn},
		promise{"the command line does all of it", commandLineDoesAllOfIt},
		promise{"the command line tells what is wrong", commandLineTellsWhatIsWrong},
		promise{"the command line follows", commandLineFollows},
	)
	s.inTurn(
		promise{"replay prints the same history twice", replayPrintsTheSameHistoryTwice},
		promise{"the history is sound", requireSoundHistory},
	)
}

// TestOutages is one system of which parts are taken away while it is needed.
func TestOutages(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.inTurn(
		promise{"a dispatcher that was away catches up", dispatcherCatchesUp},
		promise{"a watcher that was away catches up", watcherCatchesUp},
		promise{"a state service that was away catches up", stateCatchesUp},
		promise{"NATS away keeps nobody from wishing", natsAwayKeepsNobodyFromWishing},
		promise{"whatever restarts, all converges", whateverRestartsAllConverges},
		promise{"a lost Deployment comes back", lostDeploymentComesBack},
		promise{"a loss is noticed while nobody can repair it", lossIsNoticedWhileNobodyCanRepairIt},
		promise{"a loss nobody saw is repaired", lossNobodySawIsRepaired},
		promise{"termination goes on after a restart", terminationGoesOnAfterARestart},
		promise{"the history is sound", requireSoundHistory},
	)
}
