SELECT strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
