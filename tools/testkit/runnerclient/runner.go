package runnerclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Register creates a runner with a registration token. The client then uses the new runner's token.
func (c *Client) Register(ctx context.Context, registration Registration) (Runner, error) {
	type body struct {
		Registration

		Info map[string]any `json:"info"`
	}
	a, err := c.send(
		ctx, http.MethodPost, "/runners", c.runnerHeader(registration.Token), body{registration, c.cfg.Info},
	)
	if err != nil {
		return Runner{}, err
	}
	var runner Runner
	if err := a.into(&runner, http.StatusCreated); err != nil {
		return Runner{}, err
	}
	if runner.ID == 0 || runner.Token == "" {
		return Runner{}, errors.New("register: the answer has no id or no token")
	}
	c.setToken(runner.Token)
	return runner, nil
}

// Verify checks the token of the runner.
func (c *Client) Verify(ctx context.Context) (Runner, error) {
	token := c.Token()
	a, err := c.send(ctx, http.MethodPost, "/runners/verify", c.runnerHeader(token), c.self(token))
	if err != nil {
		return Runner{}, err
	}
	var runner Runner
	if err := a.into(&runner, http.StatusOK); err != nil {
		return Runner{}, err
	}
	if runner.ID == 0 {
		return Runner{}, errors.New("verify: the answer has no id")
	}
	return runner, nil
}

// ResetToken replaces the token of the runner. The token travels in the body only.
func (c *Client) ResetToken(ctx context.Context) (Runner, error) {
	a, err := c.send(
		ctx, http.MethodPost, "/runners/reset_authentication_token", http.Header{}, map[string]string{"token": c.Token()},
	)
	if err != nil {
		return Runner{}, err
	}
	var runner Runner
	if err := a.into(&runner, http.StatusCreated); err != nil {
		return Runner{}, err
	}
	if runner.Token == "" {
		return Runner{}, errors.New("reset the token: the answer has no token")
	}
	c.setToken(runner.Token)
	return runner, nil
}

// Unregister deletes the runner.
func (c *Client) Unregister(ctx context.Context) error {
	token := c.Token()
	a, err := c.send(ctx, http.MethodDelete, "/runners", c.runnerHeader(token), map[string]string{"token": token})
	if err != nil {
		return err
	}
	return a.into(nil, http.StatusNoContent)
}

// UnregisterManager deletes this manager of the runner.
func (c *Client) UnregisterManager(ctx context.Context) error {
	token := c.Token()
	a, err := c.send(ctx, http.MethodDelete, "/runners/managers", c.runnerHeader(token), c.self(token))
	if err != nil {
		return err
	}
	return a.into(nil, http.StatusNoContent)
}

// Discover asks for a router that newer runners may use for jobs. It returns false if the server has none.
func (c *Client) Discover(ctx context.Context) (bool, error) {
	a, err := c.send(ctx, http.MethodGet, "/runners/router/discovery", c.runnerHeader(c.Token()), nil)
	if err != nil {
		return false, err
	}
	if a.status == http.StatusNotImplemented || a.status == http.StatusNotFound {
		return false, nil
	}
	return true, a.into(nil, http.StatusOK)
}

// RequestJob sends one request for a job, which the server may hold for minutes. It returns nil if there is none. Three
// refused requests in a row disable the client: then it returns [ErrDisabled] and sends nothing.
func (c *Client) RequestJob(ctx context.Context) (*Job, error) {
	c.mu.Lock()
	token, lastUpdate, disabled := c.token, c.lastUpdate, c.clientErrors >= maxClientErrors
	c.mu.Unlock()
	if disabled {
		return nil, ErrDisabled
	}
	body := map[string]any{"token": token, "info": c.cfg.Info}
	if c.cfg.SystemID != "" {
		body["system_id"] = c.cfg.SystemID
	}
	if lastUpdate != "" {
		body["last_update"] = lastUpdate
	}
	a, err := c.send(ctx, http.MethodPost, "/jobs/request", c.runnerHeader(token), body)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if value := a.header.Get("X-Gitlab-Last-Update"); value != "" {
		c.lastUpdate = value
	}
	if a.status >= http.StatusBadRequest && a.status < http.StatusInternalServerError && a.status != http.StatusConflict {
		c.clientErrors++
	} else {
		c.clientErrors = 0
	}
	c.mu.Unlock()
	switch a.status {
	case http.StatusNoContent:
		return nil, nil //nolint:nilnil // documented: there is no job
	case http.StatusConflict:
		return nil, ErrTryAgain
	}
	var job Job
	if err := a.into(&job, http.StatusCreated); err != nil {
		return nil, err
	}
	if job.ID == 0 || job.Token == "" || job.GitInfo == nil || len(job.Steps) == 0 {
		return nil, fmt.Errorf("job %d has no id, token, git_info or steps: a runner would not accept it", job.ID)
	}
	return &job, nil
}

func (c *Client) self(token string) map[string]string {
	body := map[string]string{"token": token}
	if c.cfg.SystemID != "" {
		body["system_id"] = c.cfg.SystemID
	}
	return body
}

func (c *Client) setToken(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
}
