package gitlab_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	client "gitlab.com/gitlab-org/api/client-go"
)

// TestPublicClientIsServed calls each endpoint that the public Go client of GitLab's API has a method for. That client
// sends the token of its user with every request.
func TestPublicClientIsServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	api, err := client.NewClient("lsp_user", client.WithBaseURL(f.url), client.WithoutRetries(),
		client.WithHTTPClient(&http.Client{Transport: transport}))
	require.NoError(t, err)

	created, _, err := api.Users.CreateUserRunner(&client.CreateUserRunnerOptions{
		RunnerType: new("project_type"), ProjectID: new(int64(7)), TagList: &[]string{"a", "b"},
	})
	require.NoError(t, err)
	require.Equal(t, "glrt-project_type", created.Token)
	require.NotNil(t, created.TokenExpiresAt)

	registered, _, err := api.Runners.RegisterNewRunner(&client.RegisterNewRunnerOptions{
		Token: new(registration), TagList: &[]string{"a", "b"}, RunUntagged: new(false),
		Info: &client.RegisterNewRunnerInfoOptions{Name: new("probe")},
	})
	require.NoError(t, err)
	require.EqualValues(t, 8, registered.ID)

	for _, token := range []string{created.Token, registered.Token} {
		_, err = api.Runners.VerifyRegisteredRunner(&client.VerifyRegisteredRunnerOptions{Token: &token})
		require.NoError(t, err)
		_, err = api.Runners.DeleteRegisteredRunner(&client.DeleteRegisteredRunnerOptions{Token: &token})
		require.NoError(t, err)
		response, err := api.Runners.VerifyRegisteredRunner(&client.VerifyRegisteredRunnerOptions{Token: &token})
		require.ErrorContains(t, err, "the token of the runner is not valid")
		require.Equal(t, http.StatusForbidden, response.StatusCode)
	}
}
