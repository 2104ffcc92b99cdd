package rocketmq_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

func TestAnswerCode(t *testing.T) {
	t.Parallel()
	code, ok := rocketmq.AnswerCode(errors.New("CODE: 13, DESC: the message is illegal"))
	require.True(t, ok)
	require.Equal(t, rocketmq.CodeMessageIllegal, code)
	for _, text := range []string{"request timeout", "CODE: x, DESC: y", "dial: CODE: 13, DESC: z", ""} {
		_, ok := rocketmq.AnswerCode(errors.New(text))
		require.False(t, ok, text)
	}
}
