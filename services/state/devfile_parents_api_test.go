package state_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestDevfileWithAParentOfARegistry(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path != "/devfiles/ide/1.2.0" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(aDevfile))
	}))
	defer registry.Close()
	b := newFixture(t)
	b.cfg.Devfile.Registries = []string{registry.URL}
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	const child = "schemaVersion: 2.2.0\nmetadata: {name: mine}\nparent: {id: ide, version: "
	w := call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{
		ProjectId: project, Devfile: child + "1.2.0}",
	}).GetWorkspace()
	require.Equal(t, "mine", w.GetName())
	require.Equal(t, "registry.example/ide:9", w.GetSpec().GetImage())
	require.EqualValues(t, 1, requests.Load())

	refused(t, errcode.InvalidArgument, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{
		ProjectId: project, Devfile: child + "1.3.0}",
	})
	require.EqualValues(t, 2, requests.Load())
	_, stranger := admin.user(b, "sam")
	refused(t, errcode.NotFound, stranger.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{
		ProjectId: project, Devfile: child + "1.2.0}",
	})
	require.EqualValues(t, 2, requests.Load(), "nothing is fetched for those who may not create workspaces")
}
