package history_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/tools/history"
)

func TestOutages(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0).UTC() }
	lease := func(holder string, second int) history.ObjectVersion {
		return history.ObjectVersion{At: at(second), Object: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(second)},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: new(metav1.NewMicroTime(at(second)))},
		}}
	}
	for name, tc := range map[string]struct {
		versions []history.ObjectVersion
		want     []history.Outage
	}{
		"the first leader": {[]history.ObjectVersion{lease("a", 1), lease("a", 2)}, nil},
		"in any order":     {[]history.ObjectVersion{lease("a", 3), lease("a", 1), lease("a", 2)}, nil},
		"another leader": {[]history.ObjectVersion{lease("a", 1), lease("b", 2)}, []history.Outage{{
			From:  at(1),
			Until: at(2),
		}}},
		"given back and taken": {
			[]history.ObjectVersion{lease("a", 1), lease("", 2), lease("a", 3)},
			[]history.Outage{{From: at(1), Until: at(3)}},
		},
		"no leader yet": {[]history.ObjectVersion{lease("a", 1), lease("", 2)}, nil},
		"renewed late, and not": {
			[]history.ObjectVersion{lease("a", 1), lease("a", 2), lease("a", 5), lease("a", 6)},
			[]history.Outage{{From: at(2), Until: at(5)}},
		},
		"what is no Lease is left": {[]history.ObjectVersion{
			lease("a", 1),
			{At: at(2), Object: &metav1.ObjectMeta{}},
			lease("a", 2),
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, history.Outages(tc.versions, 3*time.Second))
		})
	}
}
