package report_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/topology"
)

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func deployment(name, uid string, version int) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: identified(name, uid, version)}
}

func identified(name, uid string, version int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}
}

func agentOf(t *testing.T, subject string) int64 {
	t.Helper()
	parsed, err := topology.Parse(subject)
	require.NoError(t, err)
	agent, err := parsed.Agent()
	require.NoError(t, err)
	return agent
}
