package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

func TestOutageBeginsWithTheFaultOfNATSThatReachesIntoIt(t *testing.T) {
	t.Parallel()
	at := func(seconds int) time.Time { return time.Unix(int64(1000+seconds), 0) }
	lease := func(version, leader string, renewed int) history.ObjectVersion {
		return history.ObjectVersion{At: at(renewed), Object: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: version},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &leader, RenewTime: &metav1.MicroTime{Time: at(renewed)}},
		}}
	}
	margin := int(outageMargin / time.Second)
	fault := func(target string, from, until int) Injected {
		return Injected{Fault: Fault{Target: target}, From: at(from), Until: at(until)}
	}
	for name, test := range map[string]struct {
		fault Injected
		from  int
	}{
		"of NATS":             {fault(nats, 60, 95), 60},
		"of a watcher's link": {fault(linkName(stack.WatcherOf(firstAgent)+"#2", nats), 60, 95), 60},
		"of all links":        {fault(watcherNATS, 60, 95), 60},
		"ended long before":   {fault(nats, 60, 80), 100 - margin},
		"of another service":  {fault("state-nats", 60, 95), 100 - margin},
	} {
		r := Recording{
			Versions: []history.ObjectVersion{lease("1", "a", 100), lease("2", "b", 120)}, Faults: []Injected{test.fault},
		}
		require.Equal(t, []history.Outage{{From: at(test.from), Until: at(120 + margin)}}, outages(r), name)
	}
}
